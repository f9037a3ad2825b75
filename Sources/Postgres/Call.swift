import Synchronization

/// What bounds one use of a connection: a deadline, and the task's cancellation.
final class Call: Sendable {
    /// When statements that are under way are cancelled.
    let deadline: ContinuousClock.Instant
    private let cancelled = Atomic(false)

    /// A call with this much time from now.
    init(lasting time: Duration) {
        deadline = .now + time
    }

    /// Marks the task as cancelled, from any thread.
    func cancel() {
        cancelled.store(true, ordering: .releasing)
    }

    /// Whether the task was cancelled.
    var isCancelled: Bool { cancelled.load(ordering: .acquiring) }

    /// Refuses to begin another statement once the call is over.
    func check() throws(PostgresError) {
        if isCancelled { throw PostgresError(.cancelled, "the task was cancelled") }
        if ContinuousClock.now >= deadline { throw PostgresError(.timedOut, "the deadline passed before a statement") }
    }
}
