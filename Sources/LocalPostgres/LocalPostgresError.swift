/// Why a private cluster could not be started.
package struct LocalPostgresError: Error, Sendable, CustomStringConvertible {
    /// What kind of failure it is.
    package enum Code: String, Sendable, CaseIterable {
        /// PostgreSQL's programs are not on this machine.
        case notInstalled = "not-installed"
        /// The directory cannot be made or used.
        case unusableDirectory = "unusable-directory"
        /// The server ended before it took connections.
        case notStarted = "not-started"
    }

    /// What kind of failure it is.
    package let code: Code
    /// The cause and the next step, in one line.
    package let message: String

    init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    /// The cause and the next step, in one line.
    package var description: String { message }
}
