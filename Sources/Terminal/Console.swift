import Glibc
import Synchronization

package struct OutputError: Error, Sendable, Equatable {
    package let cause: String

    package init(_ cause: String) {
        self.cause = cause
    }
}

package final class Console: Sendable {
    package let style: OutputStyle
    package let errorStyle: OutputStyle
    private let writeOutput: @Sendable (String) throws(OutputError) -> Void
    private let writeError: @Sendable (String) -> Void
    private let firstLoss = Mutex<OutputError?>(nil)

    package init(
        style: OutputStyle,
        errorStyle: OutputStyle = .plain,
        output: @escaping @Sendable (String) throws(OutputError) -> Void,
        error: @escaping @Sendable (String) -> Void
    ) {
        self.style = style
        self.errorStyle = errorStyle
        self.writeOutput = output
        self.writeError = error
    }

    package static func standard(environment: [String: String]) -> Console {
        Console(
            style: OutputStyle(of: STDOUT_FILENO, environment: environment),
            errorStyle: OutputStyle(of: STDERR_FILENO, environment: environment),
            output: { text throws(OutputError) in try Self.write(text, to: STDOUT_FILENO) },
            // If standard error fails, there is no other place to report it.
            error: { try? Self.write($0, to: STDERR_FILENO) }
        )
    }

    /// The first failed write to standard output. The command continues without output and checks this at its end, because
    /// a change of the database must not stop halfway when the reader of the output is gone.
    package var outputError: OutputError? { firstLoss.withLock { $0 } }

    /// True if the reader of standard output is gone. Only a pipe, a socket or a terminal can tell before a write.
    package static var isOutputClosed: Bool {
        var output = pollfd(fd: STDOUT_FILENO, events: 0, revents: 0)
        return poll(&output, 1, 0) == 1 && output.revents & Int16(POLLERR | POLLHUP | POLLNVAL) != 0
    }

    package func print(_ line: String = "") {
        write(line + "\n")
    }

    /// Prints lines with one write.
    package func print(lines: [String]) {
        guard !lines.isEmpty else { return }
        write(lines.joined(separator: "\n") + "\n")
    }

    package func note(_ line: String) {
        writeError(line + "\n")
    }

    /// Prints a failure to standard error: `siwad: cause: next step`.
    package func report(_ failure: CommandFailure) {
        guard !failure.message.isEmpty else { return }
        writeError(errorStyle.painted("siwad:", .red) + " \(failure)\n")
    }

    /// The maximum width of a progress bar on standard error; `nil` if none can be drawn.
    package var barWidth: Int? { errorStyle.redrawsLines ? errorStyle.width : nil }

    package func redraw(_ line: String) {
        writeError("\r\u{1b}[2K" + line)
    }

    /// Writes to standard output. After a failed write it drops the rest, because output with a gap is worse than output
    /// without an end.
    private func write(_ text: String) {
        guard outputError == nil else { return }
        do throws(OutputError) {
            try writeOutput(text)
        } catch {
            firstLoss.withLock { $0 = $0 ?? error }
        }
    }

    /// Writes the whole text. If the reader is gone, SIGPIPE ends the process; if that signal is ignored, the text is
    /// dropped without an error, because the reader stopped on purpose.
    private static func write(_ text: String, to descriptor: Int32) throws(OutputError) {
        let bytes = Array(text.utf8)
        var start = 0
        while start < bytes.count {
            let written = bytes[start...].withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
            if written > 0 {
                start += written
                continue
            }
            switch errno {
            case EINTR: continue
            case EPIPE: return
            case EAGAIN:
                // Another process that shares the terminal or pipe made it non-blocking.
                var ready = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
                _ = poll(&ready, 1, -1)
            default: throw OutputError(String(cString: strerror(errno)))
            }
        }
    }
}
