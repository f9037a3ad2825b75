import Glibc
import Synchronization

/// Standard error, one record at a time: a record longer than a pipe's atomic size isn't torn by another thread's.
final class StandardErrorOutput: Sendable {
    private let turn = Mutex<Void>(())

    /// Writes a whole record. A reader that is gone loses it: a log is not worth dying for.
    func write(_ record: [UInt8]) {
        turn.withLock { _ in
            var rest = record[...]
            while !rest.isEmpty {
                let written = rest.withUnsafeBytes { Glibc.write(STDERR_FILENO, $0.baseAddress, $0.count) }
                if written > 0 {
                    rest = rest.dropFirst(written)
                } else if errno != EINTR {
                    return
                }
            }
        }
    }
}
