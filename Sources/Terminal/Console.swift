import Glibc
import Synchronization

/// Why standard output could not take what was printed.
package struct OutputError: Error, Sendable, Equatable {
    /// `No space left on device`, …
    package let cause: String

    /// An error of this cause.
    package init(_ cause: String) {
        self.cause = cause
    }
}

/// The standard streams of a command.
package struct Console: Sendable {
    /// What standard output can show.
    package let style: OutputStyle
    /// What standard error can show.
    package let errorStyle: OutputStyle
    private let writeOutput: @Sendable (String) throws(OutputError) -> Void
    private let writeError: @Sendable (String) -> Void
    private let lost = LostOutput()

    /// A console that writes through these closures, for tests.
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

    /// The console of this process.
    package static func standard(environment: [String: String]) -> Console {
        Console(
            style: .ofStandardOutput(environment: environment),
            errorStyle: .ofStandardError(environment: environment),
            output: { text throws(OutputError) in try Self.write(text, to: STDOUT_FILENO) },
            // Where errors can't be written, there is nobody left to tell.
            error: { try? Self.write($0, to: STDERR_FILENO) }
        )
    }

    /// Why something that was printed did not arrive; nil if everything did. Work goes on without it, because what changes
    /// the database must not end halfway for want of a reader: the command's end asks.
    package var outputError: OutputError? { lost.error }

    /// Prints a line.
    package func print(_ line: String = "") {
        write(line + "\n")
    }

    /// Prints lines in one go.
    package func print(lines: [String]) {
        guard !lines.isEmpty else { return }
        write(lines.joined(separator: "\n") + "\n")
    }

    /// Prints a line to standard error: what is not the output of the command.
    package func note(_ line: String) {
        writeError(line + "\n")
    }

    /// Prints a failure as every command does: `siwad: cause: next step`.
    package func report(_ failure: CommandFailure) {
        guard !failure.message.isEmpty else { return }
        writeError(errorStyle.painted("siwad:", .red) + " \(failure)\n")
    }

    /// How wide a progress bar on standard error may be; nil: none can be drawn there.
    package var barWidth: Int? { errorStyle.redrawsLines ? errorStyle.width : nil }

    /// Redraws the line of a progress bar on standard error.
    package func redraw(_ line: String) {
        writeError("\r\u{1b}[2K" + line)
    }

    /// Writes to standard output, unless something before it was lost already: a hole in the middle is worse than an end.
    private func write(_ text: String) {
        guard outputError == nil else { return }
        do throws(OutputError) {
            try writeOutput(text)
        } catch {
            lost.note(error)
        }
    }

    /// Writes everything. A reader that went away ends the process by SIGPIPE, or, where that is ignored, is not told
    /// anything more: it has had what it wanted.
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
                // Somebody else at the other end of the terminal or pipe made it non-blocking.
                var ready = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
                _ = poll(&ready, 1, -1)
            default: throw OutputError(String(cString: strerror(errno)))
            }
        }
    }
}

/// The first error of standard output.
private final class LostOutput: Sendable {
    private let first = Mutex<OutputError?>(nil)

    var error: OutputError? { first.withLock { $0 } }

    func note(_ error: OutputError) {
        first.withLock { $0 = $0 ?? error }
    }
}
