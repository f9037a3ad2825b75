/// The reason why a command failed: one line for standard error, and the exit code.
package struct CommandFailure: Error, Sendable, Equatable, CustomStringConvertible {
    package let status: CommandStatus
    /// The cause, then the next step, in one line without a full stop; empty if the output already contains the reason.
    package let message: String
    /// The end of ``message``; `nil` if there is no next step, or if only the last colon separates it.
    private let nextStep: String?

    /// - Parameter cause: without `nextStep`, contains the next step, if any, after its last colon.
    package init(_ status: CommandStatus, _ cause: String, nextStep: String? = nil) {
        self.status = status
        self.message = nextStep.map { "\(cause): \($0)" } ?? cause
        self.nextStep = nextStep
    }

    /// - Parameter line: has the next step, if any, after the last semicolon.
    package init(_ status: CommandStatus, line: String) {
        self.status = status
        self.message = line
        let parts = line.split(separator: "; ")
        self.nextStep = parts.count > 1 ? parts.last.map(String.init) : nil
    }

    /// The cause and the next step; `nil` if the message has no separator.
    package var parts: (cause: String, nextStep: String)? {
        if let nextStep { return (String(message.dropLast(nextStep.count + 2)), nextStep) }
        let parts = message.split(separator: ": ")
        guard parts.count > 1, let last = parts.last else { return nil }
        return (String(message.dropLast(last.count + 2)), String(last))
    }

    package var description: String { VisibleText.visible(message) }
}

/// The exit codes of siwad; the numbers from 64 on come from sysexits(3).
package enum CommandStatus: Int32, Sendable {
    case done = 0
    case failed = 1
    case partlyFailed = 2
    case nothingMatched = 4
    case usage = 64
    /// The database or Apple is unreachable.
    case unavailable = 69
    case configuration = 78
}
