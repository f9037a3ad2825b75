/// What went wrong with the spool.
package struct SpoolError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The kind of failure.
    package enum Code: String, Sendable, CaseIterable {
        /// The directory can't be used as a spool; it needs an operator.
        case unusable
        /// Another process has the directory.
        case inUse = "in-use"
        /// The limit is reached.
        case full
        /// What such records may take of the limit is taken.
        case shareFull = "share-full"
        /// The system refuses to write, read or list at present: a full disk, too few file descriptors, missing rights.
        case failed
    }

    /// The kind of failure.
    package let code: Code
    /// The cause and the next step, on one line; names paths, never content.
    package let message: String

    init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    /// The message.
    package var description: String { message }
}
