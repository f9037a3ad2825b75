import AsyncHTTPClient

/// Carries out a request within a deadline. The client's own ends with the head of the answer; this one covers the body
/// too.
///
/// - Throws: what `work` throws; `HTTPClientError.deadlineExceeded`.
func withDeadline<R: Sendable>(
    _ deadline: Duration,
    _ work: @escaping @Sendable () async throws -> R
) async throws -> R {
    try await withThrowingTaskGroup(of: R.self) { group in
        group.addTask { try await work() }
        group.addTask {
            try await Task.sleep(for: deadline)
            throw HTTPClientError.deadlineExceeded
        }
        defer { group.cancelAll() }
        guard let result = try await group.next() else { throw CancellationError() }
        return result
    }
}
