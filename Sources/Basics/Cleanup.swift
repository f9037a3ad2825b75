/// Runs `body`, then `cleanup`, whether `body` failed or not: `defer` cannot await.
package func withCleanup<Value, Failure>(
    _ cleanup: () async -> Void,
    _ body: () async throws(Failure) -> Value
) async throws(Failure) -> Value {
    let result: Result<Value, Failure>
    do throws(Failure) {
        result = .success(try await body())
    } catch {
        result = .failure(error)
    }
    await cleanup()
    return try result.get()
}
