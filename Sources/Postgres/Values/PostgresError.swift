import CLibPQ

/// An error between this process and PostgreSQL.
///
/// `description` never contains a value that was bound or stored: it shows the server's texts only for classes of errors
/// that name objects, roles or resources. `message` and `detail` are the full texts and may contain values.
package struct PostgresError: Error, Sendable, CustomStringConvertible {
    package enum Code: String, Sendable, CaseIterable {
        case connectionFailed = "connection-failed"
        /// A connection broke, or stopped answering, while it was in use.
        case connectionLost = "connection-lost"
        /// The deadline passed; the statement was cancelled. Or a commit stopped waiting for synchronous replication.
        case timedOut = "timed-out"
        case cancelled
        /// The server refused a statement for the reason in `sqlState`.
        case server
        /// A value was read as another type than it has.
        case decoding
        /// The migrations in the database do not match the migrations of this version.
        case migration
        /// The caller or the configuration is wrong.
        case usage
    }

    package let code: Code
    /// The server's code, if the error came from the server.
    package internal(set) var sqlState: SQLState?
    /// The cause. If it comes from the server, it may contain values of the statement.
    package let message: String
    /// The server's DETAIL, which may contain values of the statement.
    package internal(set) var detail: String?
    package internal(set) var hint: String?
    /// The schema of the table, data type or constraint.
    package internal(set) var schemaName: String?
    package internal(set) var tableName: String?
    package internal(set) var columnName: String?
    package internal(set) var constraintName: String?
    /// The number and name of the migration whose statements failed.
    package internal(set) var migration: String?
    /// True if the server may have committed in spite of the error: the connection was lost during a COMMIT, or during a
    /// statement outside a transaction; or the commit stopped waiting for its synchronous standbys.
    package internal(set) var isOutcomeUnknown = false

    /// An error of this client, or a test's imitation of a server error.
    package init(_ code: Code, _ message: String, sqlState: SQLState? = nil) {
        self.code = code
        self.message = message
        self.sqlState = sqlState
    }

    static let taskCancelled = PostgresError(.cancelled, "the task was cancelled")

    /// True if there is no working connection; another may succeed later.
    package var isConnectionError: Bool {
        code == .connectionFailed || code == .connectionLost
    }

    /// Whether no server answers, or it starts or stops. False if it refuses this connection, for the role or because there are
    /// too many, which says nothing about the connections that there are.
    package var isServerAway: Bool {
        isConnectionError && (sqlState.map { ["08", "57"].contains($0.classCode) } ?? true)
    }

    /// Whether another transaction interfered, so that the same statement may succeed now.
    package var isConflict: Bool { sqlState == .serializationFailure || sqlState == .deadlockDetected }

    /// True if the statement's values are the cause (classes 22 and 23), so that a retry fails again.
    package var isDataError: Bool {
        guard let sqlState else { return false }
        return sqlState.classCode == "22" || sqlState.classCode == "23"
    }

    /// True if the same call may succeed when it is repeated.
    package var isRetryable: Bool {
        guard code != .cancelled else { return false }
        guard let sqlState else { return isConnectionError || code == .timedOut }
        switch sqlState.classCode {
        case "08", "40", "53", "57": return true
        case "55": return sqlState == .lockNotAvailable
        // The next execution prepares the statement again.
        case "26": return sqlState == .invalidStatementName
        default: return false
        }
    }

    /// One line that names the cause and, if the server gave one, the next step; free of values.
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
        if let migration { text = "migration \(migration) failed: \(text)" }
        return text.singleLine
    }

    /// True for classes whose texts name objects, roles, resources and states, but never values.
    private var showsServerText: Bool {
        guard let sqlState else { return false }
        switch sqlState.classCode {
        case "08", "0A", "25", "26", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58", "F0": return true
        default: return false
        }
    }
}

extension PostgresError {
    init(report: borrowing ResultHandle, _ sqlState: SQLState) {
        self.init(.server, report.errorField(CLIBPQ_DIAG_MESSAGE) ?? "", sqlState: sqlState)
        detail = report.errorField(CLIBPQ_DIAG_DETAIL)
        hint = report.errorField(CLIBPQ_DIAG_HINT)
        schemaName = report.errorField(CLIBPQ_DIAG_SCHEMA)
        tableName = report.errorField(CLIBPQ_DIAG_TABLE)
        columnName = report.errorField(CLIBPQ_DIAG_COLUMN)
        constraintName = report.errorField(CLIBPQ_DIAG_CONSTRAINT)
    }

    /// libpq's verbose report of a failure to connect: `…: FATAL:  28P01: password …`, then a line `LOCATION:  …`.
    /// It names hosts, users and databases, but never a password.
    init(connectionFailure report: String) {
        var state: SQLState?
        let lines = report.split(whereSeparator: \.isNewline).filter { !$0.hasPrefix("LOCATION:") }.map { line in
            guard let match = line.firstMatch(of: #/:  ([0-9A-Z]{5}): /#) else { return line }
            state = SQLState(rawValue: String(match.1))
            return line[..<match.range.lowerBound] + ": " + line[match.range.upperBound...]
        }
        let text = lines.joined(separator: " ").singleLine
        self.init(.connectionFailed, text.isEmpty ? "no connection to PostgreSQL could be made" : text, sqlState: state)
    }

    /// Combines the failures of several hosts: the last one, with the messages of all.
    init(connectionFailures failures: [PostgresError]) {
        guard failures.count > 1, let last = failures.last else {
            self = failures.first ?? PostgresError(.connectionFailed, "no host of PostgreSQL is configured")
            return
        }
        var texts: [String] = []
        for failure in failures where !texts.contains(failure.message) { texts.append(failure.message) }
        self.init(last.code, texts.joined(separator: "; "), sqlState: last.sqlState)
    }
}

extension String {
    /// The text with each run of white space replaced by one space.
    var singleLine: String {
        split(whereSeparator: \.isWhitespace).joined(separator: " ")
    }
}

/// The five-character code that PostgreSQL gives every error, such as `23505`; unknown codes are kept.
///
/// Source: PostgreSQL documentation, appendix A, "PostgreSQL Error Codes".
package struct SQLState: RawRepresentable, Hashable, Sendable, CustomStringConvertible {
    package let rawValue: String

    package init(rawValue: String) {
        self.rawValue = rawValue
    }

    /// The first two characters, such as `23` for integrity constraints.
    package var classCode: Substring { rawValue.prefix(2) }

    package var description: String { rawValue }

    /// A text that is not valid in the server's encoding, such as one with a NUL.
    package static let characterNotInRepertoire = SQLState(rawValue: "22021")
    package static let uniqueViolation = SQLState(rawValue: "23505")
    package static let checkViolation = SQLState(rawValue: "23514")
    /// Among others, the plan of a prepared statement no longer fits the tables.
    package static let featureNotSupported = SQLState(rawValue: "0A000")
    /// The server is a standby, or the role, database or server is set to read only.
    package static let readOnlyTransaction = SQLState(rawValue: "25006")
    package static let invalidStatementName = SQLState(rawValue: "26000")
    package static let serializationFailure = SQLState(rawValue: "40001")
    package static let deadlockDetected = SQLState(rawValue: "40P01")
    package static let insufficientPrivilege = SQLState(rawValue: "42501")
    package static let undefinedTable = SQLState(rawValue: "42P01")
    package static let objectNotInPrerequisiteState = SQLState(rawValue: "55000")
    package static let tooManyConnections = SQLState(rawValue: "53300")
    /// A lock was not granted within `lock_timeout`.
    package static let lockNotAvailable = SQLState(rawValue: "55P03")
    /// A statement was cancelled, by request or by `statement_timeout`.
    package static let queryCanceled = SQLState(rawValue: "57014")
}
