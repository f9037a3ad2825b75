/// Why a request to Apple, or to a stand-in for Apple, came to nothing.
package struct AppleClientError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The kind of fault.
    package enum Code: Sendable, Equatable {
        /// A URL that isn't allowed, or isn't one.
        case invalidURL
        /// A file that can't be read.
        case unreadableFile
        /// No connection, or one that broke.
        case unreachable
        /// No whole answer in time.
        case timedOut
        /// An answer other than 200.
        case unexpectedStatus(Int)
        /// More bytes than such an answer has.
        case tooLarge
    }

    /// The kind of fault.
    package let code: Code
    /// One line: the cause and the next step.
    package let message: String

    /// An error of this kind with its line for the operator.
    package init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    /// The message.
    package var description: String { message }
}
