/// What went wrong with the spool.
public struct SpoolError: Error, Sendable, Equatable, CustomStringConvertible {
    /// The kind of failure.
    public enum Code: String, Sendable, CaseIterable {
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
    public let code: Code
    /// The cause and the next step, on one line; names paths, never content.
    public let message: String

    init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    /// The message.
    public var description: String { message }
}
