import Synchronization

/// Holds back what must not begin yet.
final class Gate: Sendable {
    private struct State {
        var isOpen = false
        var waiters: [AsyncStream<Never>.Continuation] = []
    }

    private let state = Mutex(State())

    /// Lets through whoever waits, and everybody after.
    func open() {
        let waiters = state.withLock { state in
            state.isOpen = true
            let waiters = state.waiters
            state.waiters = []
            return waiters
        }
        for waiter in waiters { waiter.finish() }
    }

    /// Waits for the gate.
    /// - Returns: whether it is open; false when the task was cancelled before.
    func wait() async -> Bool {
        let (stream, continuation) = AsyncStream<Never>.makeStream()
        let isOpen = state.withLock { state in
            if !state.isOpen { state.waiters.append(continuation) }
            return state.isOpen
        }
        if isOpen { return true }
        for await _ in stream {}
        return state.withLock { $0.isOpen }
    }
}
