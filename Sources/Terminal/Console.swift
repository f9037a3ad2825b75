import Glibc

/// The standard streams of a command.
public struct Console: Sendable {
    /// What standard output can show.
    public let style: OutputStyle
    /// What standard error can show.
    public let errorStyle: OutputStyle
    private let writeOutput: @Sendable (String) -> Void
    private let writeError: @Sendable (String) -> Void

    /// A console that writes through these closures, for tests.
    public init(
        style: OutputStyle,
        errorStyle: OutputStyle = .plain,
        output: @escaping @Sendable (String) -> Void,
        error: @escaping @Sendable (String) -> Void
    ) {
        self.style = style
        self.errorStyle = errorStyle
        self.writeOutput = output
        self.writeError = error
    }

    /// The console of this process.
    public static func standard(environment: [String: String]) -> Console {
        Console(
            style: .ofStandardOutput(environment: environment),
            errorStyle: .ofStandardError(environment: environment),
            output: { Self.write($0, to: STDOUT_FILENO) },
            error: { Self.write($0, to: STDERR_FILENO) }
        )
    }

    /// Prints a line.
    public func print(_ line: String = "") {
        writeOutput(line + "\n")
    }

    /// Prints lines in one go.
    public func print(lines: [String]) {
        guard !lines.isEmpty else { return }
        writeOutput(lines.joined(separator: "\n") + "\n")
    }

    /// Prints a line to standard error: what is not the output of the command.
    public func note(_ line: String) {
        writeError(line + "\n")
    }

    /// Prints a failure as every command does: `siwad: cause: next step`.
    public func report(_ failure: CommandFailure) {
        guard !failure.message.isEmpty else { return }
        writeError(errorStyle.painted("siwad:", .red) + " \(failure)\n")
    }

    /// Redraws the line of a progress bar on standard error.
    public func redraw(_ line: String) {
        writeError("\r\u{1b}[2K" + line)
    }

    /// Writes everything. A reader that went away ends the process by SIGPIPE, or is not told anything more.
    private static func write(_ text: String, to descriptor: Int32) {
        let bytes = Array(text.utf8)
        var start = 0
        while start < bytes.count {
            let written = bytes[start...].withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
            if written > 0 {
                start += written
            } else if errno != EINTR {
                return
            }
        }
    }
}
