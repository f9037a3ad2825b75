import Synchronization

/// Lets one task wait until a time has passed or another thread signals, whichever comes first.
///
/// A signal while no task waits ends the next wait immediately.
package final class WakeupEvent: Sendable {
    private enum State {
        case idle
        case signalled
        case awaited(CheckedContinuation<Void, Never>)
    }

    private let state = Mutex(State.idle)

    package init() {}

    package func signal() {
        let waiter = state.withLock { state -> CheckedContinuation<Void, Never>? in
            guard case .awaited(let waiter) = state else {
                state = .signalled
                return nil
            }
            state = .idle
            return waiter
        }
        waiter?.resume()
    }

    /// Waits for a signal. For one task at a time; its cancellation ends the wait as well.
    package func wait(atMost duration: Duration) async {
        await withTaskGroup { group in
            group.addTask {
                // Cancelled with this wait, when nothing is left to signal, or with the waiting task.
                try? await Task.sleep(for: duration)
                self.signal()
            }
            await withCheckedContinuation { waiter in
                let isSignalled = state.withLock { state in
                    switch state {
                    case .signalled:
                        state = .idle
                        return true
                    case .idle:
                        state = .awaited(waiter)
                        return false
                    case .awaited:
                        preconditionFailure("a wakeup event is for one task at a time")
                    }
                }
                if isSignalled { waiter.resume() }
            }
            group.cancelAll()
            // The timer's last signal is not for the next wait.
            await group.waitForAll()
            state.withLock { $0 = .idle }
        }
    }
}

/// Growing, random pauses between attempts, so that several daemons don't return to a server at the same time.
package struct Backoff {
    private var failures = 0

    package init() {}

    /// The next pause: half to all of 0.1 s, 0.2 s … 5 s.
    package mutating func next() -> Duration {
        let full = min(Duration.milliseconds(100) * (1 << min(failures, 6)), .seconds(5))
        failures += 1
        return full * Double.random(in: 0.5...1)
    }
}
