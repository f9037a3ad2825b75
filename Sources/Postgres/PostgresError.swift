/// Whatever can go wrong between this process and PostgreSQL.
///
/// `description` never holds a value that was bound or stored: texts of the server are shown only for classes of errors
/// that name objects, roles or resources. `message` and `detail` are the full texts, for those who know what they do.
package struct PostgresError: Error, Sendable, CustomStringConvertible {
    /// What kind of failure it is.
    package enum Code: String, Sendable, CaseIterable {
        /// No connection could be made.
        case connectionFailed = "connection-failed"
        /// A connection broke, or stopped answering, while it was in use.
        case connectionLost = "connection-lost"
        /// The deadline passed; the statement was cancelled. Or a commit stopped waiting for synchronous replication.
        case timedOut = "timed-out"
        /// The task was cancelled.
        case cancelled
        /// The server refused a statement; `sqlState` says why.
        case server
        /// A result was read as a type that it does not have.
        case decoding
        /// The migrations in the database and those at hand do not fit together.
        case migration
        /// This client was used, or configured, wrongly.
        case usage
    }

    /// What kind of failure it is.
    package let code: Code
    /// The server's code, where the server had a say.
    package internal(set) var sqlState: SQLState?
    /// The cause. May hold values of the statement when it comes from the server.
    package let message: String
    /// The server's details. May hold values of the statement.
    package internal(set) var detail: String?
    /// The server's advice.
    package internal(set) var hint: String?
    /// The schema of the table, data type or constraint concerned.
    package internal(set) var schemaName: String?
    /// The table concerned.
    package internal(set) var tableName: String?
    /// The column concerned.
    package internal(set) var columnName: String?
    /// The constraint that was not met.
    package internal(set) var constraintName: String?
    /// Whether the server may have committed all the same: the connection was lost with a COMMIT, or a statement outside a
    /// transaction, under way; or it has committed, but stopped waiting for the synchronous standbys that it needs.
    package internal(set) var isOutcomeUnknown = false

    /// An error of this client, or one made up to stand for the server in a test.
    package init(_ code: Code, _ message: String, sqlState: SQLState? = nil) {
        self.code = code
        self.message = message
        self.sqlState = sqlState
    }

    /// Whether there is no working connection; another may succeed later.
    package var isConnectionError: Bool {
        code == .connectionFailed || code == .connectionLost
    }

    /// Whether the data of the statement are to blame (classes 22 and 23), so that trying again is in vain.
    package var isDataError: Bool {
        guard let sqlState else { return false }
        return sqlState.classCode == "22" || sqlState.classCode == "23"
    }

    /// Whether the same call may succeed when it is made again.
    package var isRetryable: Bool {
        guard code != .cancelled else { return false }
        guard let sqlState else { return isConnectionError || code == .timedOut }
        switch sqlState.classCode {
        case "08", "40", "53", "57": return true
        case "55": return sqlState == .lockNotAvailable
        // The statement is prepared anew the next time.
        case "26": return sqlState == .invalidStatementName
        default: return false
        }
    }

    /// One line that names the cause and, where the server gave one, the next step; free of values.
    package var description: String {
        var text = code == .server ? "PostgreSQL refused a statement" : message
        if let sqlState, code == .server {
            text += " (SQLSTATE \(sqlState))"
            text += showsServerText ? ": \(message)" : ""
        }
        if let constraintName {
            text += ", constraint \(constraintName)"
        } else if let tableName, !showsServerText {
            text += ", table \(tableName)"
        }
        if let columnName, !showsServerText {
            text += ", column \(columnName)"
        }
        if let hint, showsServerText {
            text += ". \(hint)"
        }
        return text.singleLine
    }

    /// Classes whose texts name objects, roles, resources and states, never values.
    private var showsServerText: Bool {
        guard let sqlState else { return false }
        switch sqlState.classCode {
        case "08", "0A", "25", "26", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "F0": return true
        default: return false
        }
    }
}

extension String {
    /// The text with each run of line breaks, tabs and spaces that holds a control character made one space.
    var singleLine: String {
        split(whereSeparator: { $0.isNewline || $0 == "\t" })
            .map { $0.trimmingSpaces }
            .filter { !$0.isEmpty }
            .joined(separator: " ")
    }
}

extension Substring {
    /// The text without spaces at either end.
    fileprivate var trimmingSpaces: Substring {
        var text = self
        while text.first == " " { text.removeFirst() }
        while text.last == " " { text.removeLast() }
        return text
    }
}
