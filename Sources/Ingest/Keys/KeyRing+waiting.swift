package import AppleTokens

extension KeyRing {
    /// Waits until it is known whether ``keys`` gets a key that it lacks.
    ///
    /// - Parameters:
    ///   - bytes: the memory that the caller keeps until then.
    ///   - limit: after this time, or when the task is cancelled, the key counts as unavailable.
    package func resolution(
        of kid: String,
        holding bytes: Int,
        within limit: Duration
    ) async -> KeySetCache.Resolution {
        let (decisions, decision) = AsyncStream.makeStream(of: KeySetCache.Resolution.self)
        want(kid, holding: bytes) { decision.yield($0) }
        // Cancelled when this function returns.
        let timer = Task {
            try await Task.sleep(for: limit)
            decision.finish()
        }
        defer { timer.cancel() }
        for await resolution in decisions { return resolution }
        return .keysUnavailable(retryAfterSeconds: 1)
    }
}
