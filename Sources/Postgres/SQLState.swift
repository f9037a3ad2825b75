/// The five-character code PostgreSQL gives every error, open to codes that this package has no name for.
///
/// Source: PostgreSQL documentation, appendix A, "PostgreSQL Error Codes".
package struct SQLState: RawRepresentable, Hashable, Sendable, CustomStringConvertible {
    /// The five characters, such as `23505`.
    package let rawValue: String

    /// Takes the five characters as they are; unknown codes survive.
    package init(rawValue: String) {
        self.rawValue = rawValue
    }

    /// The first two characters, which name the kind of error, such as `23` for integrity constraints.
    package var classCode: Substring { rawValue.prefix(2) }

    /// The five characters.
    package var description: String { rawValue }

    /// A text that is not valid in the server's encoding, such as one with a NUL.
    package static let characterNotInRepertoire = SQLState(rawValue: "22021")
    /// A row refers to one that is not there.
    package static let foreignKeyViolation = SQLState(rawValue: "23503")
    /// A key exists already.
    package static let uniqueViolation = SQLState(rawValue: "23505")
    /// A CHECK constraint was not met.
    package static let checkViolation = SQLState(rawValue: "23514")
    /// The plan of a prepared statement no longer fits the tables.
    package static let featureNotSupported = SQLState(rawValue: "0A000")
    /// The server is a standby, or the role, database or server is set to read only.
    package static let readOnlyTransaction = SQLState(rawValue: "25006")
    /// A prepared statement of that name is not known to the server.
    package static let invalidStatementName = SQLState(rawValue: "26000")
    /// The password was refused.
    package static let invalidPassword = SQLState(rawValue: "28P01")
    /// The database does not exist.
    package static let invalidCatalogName = SQLState(rawValue: "3D000")
    /// Concurrent transactions could not be serialized.
    package static let serializationFailure = SQLState(rawValue: "40001")
    /// Two transactions waited for one another.
    package static let deadlockDetected = SQLState(rawValue: "40P01")
    /// The role may not do this.
    package static let insufficientPrivilege = SQLState(rawValue: "42501")
    /// A table or view does not exist.
    package static let undefinedTable = SQLState(rawValue: "42P01")
    /// Something is there, but not as it would have to be.
    package static let objectNotInPrerequisiteState = SQLState(rawValue: "55000")
    /// A lock was not granted within `lock_timeout`.
    package static let lockNotAvailable = SQLState(rawValue: "55P03")
    /// A statement was cancelled, by request or by `statement_timeout`.
    package static let queryCanceled = SQLState(rawValue: "57014")
    /// The server ended the connection on an administrator's command.
    package static let adminShutdown = SQLState(rawValue: "57P01")
    /// An error raised by `RAISE` without a code.
    package static let raiseException = SQLState(rawValue: "P0001")
}
