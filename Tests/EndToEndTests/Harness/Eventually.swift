/// What a test waited for in vain.
struct TooLate: Error, CustomStringConvertible {
    let description: String

    init(_ what: String) {
        description = "waited in vain for: \(what)"
    }
}

/// Waits until a condition holds, looking again and again.
///
/// - Throws: ``TooLate`` when it doesn't in time.
func eventually(
    _ what: String,
    within limit: Duration = .seconds(30),
    _ condition: () async throws -> Bool
) async throws {
    let deadline = ContinuousClock.now + limit
    while try await !condition() {
        guard .now < deadline else { throw TooLate(what) }
        // Between two looks the processes that are looked at shall have the processor.
        try await Task.sleep(for: .milliseconds(3))
    }
}
