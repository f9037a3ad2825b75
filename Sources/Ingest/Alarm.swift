import Synchronization

/// Lets one task pause until a time has passed or somebody rings, whichever comes first.
///
/// A ring while nobody waits is kept for the next wait, which then ends at once.
final class Alarm: Sendable {
    private enum Phase {
        case quiet
        case rung
        case awaited(CheckedContinuation<Void, Never>)
    }

    private let phase = Mutex(Phase.quiet)

    /// Ends the wait, from any thread.
    func ring() {
        let waiter = phase.withLock { phase -> CheckedContinuation<Void, Never>? in
            switch phase {
            case .quiet, .rung:
                phase = .rung
                return nil
            case .awaited(let waiter):
                phase = .quiet
                return waiter
            }
        }
        waiter?.resume()
    }

    /// Waits for a ring, at most so long. For one task at a time; its cancellation ends the wait as well.
    func wait(atMost duration: Duration) async {
        await withTaskGroup { group in
            group.addTask {
                // Cancelled together with this wait, and then there is nobody to ring for; or with the waiting task.
                try? await Task.sleep(for: duration)
                self.ring()
            }
            await withCheckedContinuation { waiter in
                let isRung = phase.withLock { phase in
                    switch phase {
                    case .rung:
                        phase = .quiet
                        return true
                    case .quiet:
                        phase = .awaited(waiter)
                        return false
                    case .awaited:
                        preconditionFailure("an alarm is for one task at a time")
                    }
                }
                if isRung { waiter.resume() }
            }
            group.cancelAll()
            // Its last ring is not for the next wait.
            await group.waitForAll()
            phase.withLock { phase in
                switch phase {
                case .rung: phase = .quiet
                case .quiet, .awaited: break
                }
            }
        }
    }
}
