/// A condition that did not become true in time.
struct TooLate: Error, CustomStringConvertible {
    let description: String

    init(_ what: String) {
        description = "timed out waiting for: \(what)"
    }
}

/// Waits until a condition holds, by polling.
///
/// - Throws: ``TooLate`` after the limit.
func eventually(
    _ what: String,
    within limit: Duration = .seconds(30),
    _ condition: () async throws -> Bool
) async throws {
    let deadline = ContinuousClock.now + limit
    while try await !condition() {
        guard .now < deadline else { throw TooLate(what) }
        // Leaves the processor to the observed processes.
        try await Task.sleep(for: .milliseconds(3))
    }
}
