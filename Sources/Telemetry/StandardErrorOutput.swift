import Glibc
import Synchronization

/// Standard error, one record at a time: a record longer than a pipe's atomic size isn't torn by another thread's.
final class StandardErrorOutput: Sendable {
    private struct State {
        /// What is left of a record that was begun: it goes before the next one, so that none is torn.
        var rest: ArraySlice<UInt8> = []
        /// Whether the last wait was in vain: until the reader has read something, nobody waits for it again.
        var isStuck = false
    }

    private let descriptor: Int32
    /// How long a record waits for a reader that lags behind.
    private let patience: Duration
    private let state = Mutex(State())

    /// The standard error of this process, or what stands for it.
    init(descriptor: Int32 = STDERR_FILENO, patience: Duration = .seconds(1)) {
        self.descriptor = descriptor
        self.patience = patience
    }

    /// Writes a whole record. A reader that is gone loses it, and so does one of a non-blocking stream that doesn't read:
    /// a log is not worth dying for, nor worth hanging for.
    func write(_ record: [UInt8]) {
        state.withLock { state in
            let deadline = ContinuousClock.now + (state.isStuck ? .zero : patience)
            state.rest = unwritten(of: state.rest, until: deadline, &state.isStuck)
            guard state.rest.isEmpty else { return }
            let rest = unwritten(of: record[...], until: deadline, &state.isStuck)
            // Of what was not begun, nothing is missed in the middle.
            if rest.count < record.count { state.rest = rest }
        }
    }

    /// Writes what the reader takes in time.
    ///
    /// - Returns: what it didn't take; nothing if there is no reader.
    private func unwritten(
        of bytes: ArraySlice<UInt8>,
        until deadline: ContinuousClock.Instant,
        _ isStuck: inout Bool
    ) -> ArraySlice<UInt8> {
        var rest = bytes
        while !rest.isEmpty {
            let written = rest.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
            if written > 0 {
                rest = rest.dropFirst(written)
                isStuck = false
                continue
            }
            switch errno {
            case EINTR: continue
            case EAGAIN:
                // Somebody else at the other end of the terminal or pipe made it non-blocking.
                isStuck = !isReady(by: deadline)
                if isStuck { return rest }
            default: return []
            }
        }
        return rest
    }

    private func isReady(by deadline: ContinuousClock.Instant) -> Bool {
        let left = ContinuousClock.now.duration(to: deadline)
        guard left > .zero else { return false }
        // Rounded up: less than a millisecond would be no wait at all.
        let milliseconds = left.components.seconds * 1_000 + left.components.attoseconds / 1_000_000_000_000_000 + 1
        var ready = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
        // Where a signal ends the wait, the next attempt to write tells.
        return poll(&ready, 1, Int32(clamping: milliseconds)) != 0
    }
}
