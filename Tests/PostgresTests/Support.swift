import Postgres
import TestSupport
import Testing

/// Runs a test with one connection to a new database.
func withConnection<R>(_ body: (PostgresConnection) async throws -> R) async throws -> R {
    try await TestDatabase.with { database in
        let connection = try await PostgresConnection.connect(database.settings)
        let result = try await body(connection)
        await connection.close()
        return result
    }
}

/// The error that `body` throws, recorded as an issue if it throws none or another kind.
func postgresError<R>(_ body: () async throws -> R) async -> PostgresError? {
    do {
        _ = try await body()
        Issue.record("nothing was thrown")
    } catch let error as PostgresError {
        return error
    } catch {
        Issue.record(error)
    }
    return nil
}

extension PostgresConnection {
    /// Executes a statement that returns one integer.
    func integer(_ sql: String, deadline: Duration? = nil) async throws -> Int64 {
        try await withSession(deadline: deadline) { session throws(PostgresError) in
            try session.execute(Statement(once: sql)).int64(0, 0)
        }
    }

    /// Executes a statement that returns one text.
    func text(_ sql: String) async throws -> String {
        try await withSession { session throws(PostgresError) in
            try session.execute(Statement(once: sql)).string(0, 0)
        }
    }

    /// Executes statements and ignores their results.
    func script(_ sql: String) async throws {
        try await withSession { session throws(PostgresError) in try session.execute(script: sql) }
    }
}

extension SQLState {
    static let invalidPassword = SQLState(rawValue: "28P01")
    static let invalidCatalogName = SQLState(rawValue: "3D000")
    static let adminShutdown = SQLState(rawValue: "57P01")
}

extension Rows {
    func optionalInt64(_ row: Int, _ column: Int) throws(PostgresError) -> Int64? { try value(row, column) }
    func optionalInt32(_ row: Int, _ column: Int) throws(PostgresError) -> Int32? { try value(row, column) }
    func optionalBool(_ row: Int, _ column: Int) throws(PostgresError) -> Bool? { try value(row, column) }
    func optionalTimestamp(_ row: Int, _ column: Int) throws(PostgresError) -> Timestamp? { try value(row, column) }
    func optionalBytes(_ row: Int, _ column: Int) throws(PostgresError) -> [UInt8]? { try value(row, column) }
}

extension Session {
    /// Executes the same statement with several sets of values, pipelined.
    func executePipelined(
        _ statement: Statement,
        first: Binds,
        next: () -> Binds?,
        committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try executePipelined(
            [statement],
            first: BoundStatement(statement, first),
            next: { next().map { BoundStatement(statement, $0) } },
            committed: committed
        )
    }
}
