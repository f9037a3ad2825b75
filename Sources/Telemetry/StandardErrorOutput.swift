import Glibc
import Synchronization

/// Writes to standard error, one record at a time: the records of several threads do not mix, even records that are larger
/// than a pipe's atomic size.
final class StandardErrorOutput: Sendable {
    private struct State {
        /// The unwritten part of a record. It is written before the next record, so that none is torn.
        var rest: ArraySlice<UInt8> = []
        /// True if the last wait timed out: writers do not wait again until the reader has read something.
        var isStuck = false
    }

    private let descriptor: Int32
    /// How long a record waits for a slow reader.
    private let patience: Duration
    private let state = Mutex(State())

    init(descriptor: Int32 = STDERR_FILENO, patience: Duration = .seconds(1)) {
        self.descriptor = descriptor
        self.patience = patience
    }

    /// Writes a whole record, or drops it if the reader is gone or does not read in time. A log must neither end nor block
    /// the process.
    func write(_ record: [UInt8]) {
        state.withLock { state in
            let deadline = ContinuousClock.now + (state.isStuck ? .zero : patience)
            state.rest = unwritten(of: state.rest, until: deadline, &state.isStuck)
            guard state.rest.isEmpty else { return }
            let rest = unwritten(of: record[...], until: deadline, &state.isStuck)
            // A record without any written byte is dropped as a whole.
            if rest.count < record.count { state.rest = rest }
        }
    }

    /// Writes until the deadline. Returns the unwritten rest; empty if there is no reader.
    private func unwritten(
        of bytes: ArraySlice<UInt8>,
        until deadline: ContinuousClock.Instant,
        _ isStuck: inout Bool
    ) -> ArraySlice<UInt8> {
        var rest = bytes
        while !rest.isEmpty {
            // A blocking pipe that is ready takes this many bytes without blocking (pipe(7)).
            isStuck = !isReady(by: deadline)
            if isStuck { return rest }
            let written = rest.prefix(Int(PIPE_BUF)).withUnsafeBytes {
                Glibc.write(descriptor, $0.baseAddress, $0.count)
            }
            if written > 0 {
                rest = rest.dropFirst(written)
                continue
            }
            switch errno {
            case EINTR: continue
            case EAGAIN:
                // Another process shares the terminal or pipe: it made it non-blocking, and took the room.
                isStuck = true
                return rest
            default: return []
            }
        }
        return rest
    }

    private func isReady(by deadline: ContinuousClock.Instant) -> Bool {
        let left = ContinuousClock.now.duration(to: deadline)
        // Rounded up, because a timeout of zero does not wait.
        let milliseconds =
            left > .zero
            ? left.components.seconds * 1_000 + left.components.attoseconds / 1_000_000_000_000_000 + 1 : 0
        var ready = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
        var count: Int32
        repeat { count = poll(&ready, 1, Int32(clamping: milliseconds)) } while count < 0 && errno == EINTR
        return count != 0
    }
}
