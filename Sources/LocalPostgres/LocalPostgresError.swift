/// Why a private cluster could not be started.
public struct LocalPostgresError: Error, Sendable, CustomStringConvertible {
    /// What kind of failure it is.
    public enum Code: String, Sendable, CaseIterable {
        /// PostgreSQL's programs are not on this machine.
        case notInstalled = "not-installed"
        /// The directory cannot be made or used.
        case unusableDirectory = "unusable-directory"
        /// The server ended before it took connections.
        case notStarted = "not-started"
    }

    /// What kind of failure it is.
    public let code: Code
    /// The cause and the next step, in one line.
    public let message: String

    init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    /// The cause and the next step, in one line.
    public var description: String { message }
}
