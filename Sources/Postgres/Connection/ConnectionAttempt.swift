import Synchronization

/// The result of an attempt to connect, or the end of the wait for it, whichever comes first.
///
/// libpq resolves a host name in a call that can block for minutes and cannot be interrupted. The thread of the connection
/// may block in it; the caller does not.
final class ConnectionAttempt: Sendable {
    /// Counts abandoned attempts, which have no caller any more but have not ended.
    final class Count: Sendable {
        /// The count of this process. Each abandoned attempt keeps a thread.
        static let ofProcess = Count(limit: 16)

        fileprivate let limit: Int
        fileprivate let value = Atomic<Int>(0)

        init(limit: Int) {
            self.limit = limit
        }
    }

    private let abandoned: Count
    private let isDecided = Atomic(false)
    /// Gets one element, unless the task that waits is cancelled.
    private let results = AsyncStream<Result<Void, PostgresError>>.makeStream()

    /// - Throws: `connectionFailed` while too many abandoned attempts keep threads.
    init(counting abandoned: Count = .ofProcess) throws(PostgresError) {
        guard abandoned.value.load(ordering: .relaxed) < abandoned.limit else { throw Self.unanswered }
        self.abandoned = abandoned
    }

    /// - Returns: false if the attempt was abandoned.
    func ended(_ result: Result<Void, PostgresError>) -> Bool {
        if decide(result) { return true }
        abandoned.value.subtract(1, ordering: .relaxed)
        return false
    }

    func timePassed() {
        abandon(Self.unanswered)
    }

    func cancelled() {
        abandon(.taskCancelled)
    }

    /// Waits for the result. Call it once.
    func result() async -> Result<Void, PostgresError> {
        for await result in results.stream { return result }
        return .failure(.taskCancelled)
    }

    // MARK: - Private parts

    private static let unanswered = PostgresError(
        .connectionFailed,
        "the host name could not be resolved in time; check the name server, or use an address (hostaddr)"
    )

    private func abandon(_ error: PostgresError) {
        // Counted first, because the attempt may end concurrently.
        abandoned.value.add(1, ordering: .relaxed)
        if !decide(.failure(error)) { abandoned.value.subtract(1, ordering: .relaxed) }
    }

    /// - Returns: false if the result was decided before.
    private func decide(_ result: Result<Void, PostgresError>) -> Bool {
        guard !isDecided.exchange(true, ordering: .acquiringAndReleasing) else { return false }
        results.continuation.yield(result)
        results.continuation.finish()
        return true
    }
}
