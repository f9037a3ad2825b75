import Synchronization

/// The result of an attempt to connect, or the end of the wait for it, whichever comes first.
///
/// libpq resolves a host name in a call that blocks for as long as the resolver takes and can't be interrupted. The thread
/// of the connection may block in it; the caller does not.
final class ConnectionAttempt: Sendable {
    private enum Phase {
        case underWay
        case awaited(CheckedContinuation<Result<Void, PostgresError>, Never>)
        case decided(Result<Void, PostgresError>)
    }

    /// Counts abandoned attempts: attempts that have no caller any more and have not ended.
    final class Count: Sendable {
        /// The attempts of this process. Each abandoned one keeps a thread.
        static let ofProcess = Count(limit: 16)

        fileprivate let limit: Int
        fileprivate let value = Atomic<Int>(0)

        init(limit: Int) {
            self.limit = limit
        }
    }

    private let abandoned: Count
    private let phase = Mutex(Phase.underWay)

    /// Begins an attempt.
    ///
    /// - Throws: `connectionFailed` while too many abandoned attempts keep threads.
    init(counting abandoned: Count = .ofProcess) throws(PostgresError) {
        guard abandoned.value.load(ordering: .relaxed) < abandoned.limit else { throw Self.unanswered }
        self.abandoned = abandoned
    }

    /// The attempt ended.
    ///
    /// - Returns: false if it was abandoned.
    func ended(_ result: Result<Void, PostgresError>) -> Bool {
        if decide(result) { return true }
        abandoned.value.subtract(1, ordering: .relaxed)
        return false
    }

    /// The deadline passed.
    func timePassed() {
        abandon(Self.unanswered)
    }

    /// The caller's task was cancelled.
    func cancelled() {
        abandon(PostgresError(.cancelled, "the task was cancelled"))
    }

    /// Waits for the result. Call it once.
    func result() async -> Result<Void, PostgresError> {
        await withCheckedContinuation { waiter in
            let decided = phase.withLock { phase -> Result<Void, PostgresError>? in
                switch phase {
                case .underWay:
                    phase = .awaited(waiter)
                    return nil
                case .decided(let result):
                    return result
                case .awaited:
                    preconditionFailure("an attempt is awaited once")
                }
            }
            if let decided { waiter.resume(returning: decided) }
        }
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

    /// - Returns: false if it was decided before.
    private func decide(_ result: Result<Void, PostgresError>) -> Bool {
        let (isFirst, waiter) = phase.withLock { phase in
            switch phase {
            case .underWay:
                phase = .decided(result)
                return (true, CheckedContinuation<Result<Void, PostgresError>, Never>?.none)
            case .awaited(let waiter):
                phase = .decided(result)
                return (true, waiter)
            case .decided:
                return (false, nil)
            }
        }
        waiter?.resume(returning: result)
        return isFirst
    }
}
