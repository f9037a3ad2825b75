/// Why a command ends without having done its work: one line for standard error, and the exit code.
package struct CommandFailure: Error, Sendable, Equatable, CustomStringConvertible {
    /// The exit code.
    package let status: CommandStatus
    /// The cause, then the next step, in one line without a full stop; empty if everything is said already.
    package let message: String
    /// What ``message`` ends with; nil: it names no step, or by the last colon only.
    package let nextStep: String?

    /// A failure with this message.
    package init(_ status: CommandStatus, _ message: String) {
        self.status = status
        self.message = message
        self.nextStep = nil
    }

    /// A failure of this cause, which may hold colons of its own.
    package init(_ status: CommandStatus, cause: String, nextStep: String) {
        self.status = status
        self.message = "\(cause): \(nextStep)"
        self.nextStep = nextStep
    }

    /// A failure with a line whose next step, if any, follows the last semicolon.
    package init(_ status: CommandStatus, line: String) {
        self.status = status
        self.message = line
        let parts = line.split(separator: "; ")
        self.nextStep = parts.count > 1 ? parts.last.map(String.init) : nil
    }

    /// The message in two: what happened, and what to do about it; nil where it can't be told apart.
    package var parts: (cause: String, nextStep: String)? {
        if let nextStep { return (String(message.dropLast(nextStep.count + 2)), nextStep) }
        let parts = message.split(separator: ": ")
        guard parts.count > 1, let last = parts.last else { return nil }
        return (String(message.dropLast(last.count + 2)), String(last))
    }

    /// A failure whose output has said everything.
    package init(silent status: CommandStatus) {
        self.init(status, "")
    }

    /// The line, its line breaks and control characters made visible.
    package var description: String {
        VisibleText.visible(message)
    }
}
