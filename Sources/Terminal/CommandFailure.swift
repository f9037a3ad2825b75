/// Why a command ends without having done its work: one line for standard error, and the exit code.
public struct CommandFailure: Error, Sendable, Equatable, CustomStringConvertible {
    /// The exit code.
    public let status: CommandStatus
    /// The cause, then the next step, in one line without a full stop; empty if everything is said already.
    public let message: String

    /// A failure with this message.
    public init(_ status: CommandStatus, _ message: String) {
        self.status = status
        self.message = message
    }

    /// A failure whose output has said everything.
    public init(silent status: CommandStatus) {
        self.init(status, "")
    }

    /// The line, its line breaks and control characters made visible.
    public var description: String {
        VisibleText.visible(message)
    }
}
