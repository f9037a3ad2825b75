import Postgres
import Settings

/// The database as the operator's commands use it: with the schema of this binary, and a connection that is given back
/// when the command ends.
struct Database: Sendable {
    /// The connection.
    let pool: ConnectionPool

    /// Runs `body` with the configured database.
    /// - Throws: `SettingsError`, `PostgresError`, `CommandFailure` for another schema, and what `body` throws.
    static func with<Result>(
        _ configuration: Configuration,
        _ body: (Database) async throws -> Result
    ) async throws -> Result {
        let pool = ConnectionPool(try configuration.connectionSettings(), maximum: 1)
        do {
            try await SchemaState.read(pool).check()
            let result = try await body(Database(pool: pool))
            await pool.close()
            return result
        } catch {
            await pool.close()
            throw error
        }
    }

    /// Reads one consistent state.
    func read<Value: Sendable>(
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> Value
    ) async throws(PostgresError) -> Value {
        try await pool.transaction(.repeatableRead, body)
    }

    /// Changes something, whole or not at all.
    func write<Value: Sendable>(
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> Value
    ) async throws(PostgresError) -> Value {
        try await pool.transaction(.readCommitted, body)
    }
}
