import Postgres
import TestSupport
import Testing

@Suite("Broken connections")
struct BrokenConnectionTests {
    private static let end = "SELECT pg_terminate_backend(pg_backend_pid())::text"

    @Test("If the server ends a connection, the error reports an unknown outcome, and later uses fail.")
    func ended() async throws {
        try await withConnection { connection async throws in
            let error = await postgresError { try await connection.text(Self.end) }
            #expect(error?.code == .connectionLost)
            #expect(error?.sqlState == .adminShutdown)
            #expect(error?.isRetryable == true)
            #expect(error?.isOutcomeUnknown == true)
            #expect(connection.isClosed)
            #expect(await postgresError { try await connection.integer("SELECT 1") }?.code == .connectionLost)
        }
    }

    @Test("If the connection is lost before COMMIT, the transaction is known not to be committed.")
    func endedInTransaction() async throws {
        try await withConnection { connection async throws in
            let error = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    _ = try session.execute(Statement(once: Self.end))
                }
            }
            #expect(error?.code == .connectionLost)
            #expect(error?.isOutcomeUnknown == false)
        }
    }

    @Test("A closed connection refuses further use.")
    func closed() async throws {
        try await withConnection { connection async throws in
            await connection.close()
            #expect(connection.isClosed)
            let error = await postgresError { try await connection.integer("SELECT 1") }
            #expect(error?.code == .connectionLost)
            #expect(error?.isOutcomeUnknown == false)
        }
    }

    @Test("A pool replaces a connection that broke during use.")
    func poolReplacesBroken() async throws {
        try await TestDatabase.with { database async throws in
            let pool = database.pool(maximum: 1)
            let error = await postgresError { try await pool.text(Self.end) }
            #expect(error?.code == .connectionLost)
            #expect(try await pool.text("SELECT 'again'") == "again")
            await pool.close()
        }
    }

    @Test("A pool replaces a connection that the server ended while it was idle, without an error.")
    func poolReplacesStale() async throws {
        try await TestDatabase.with { database in
            let pool = database.pool(maximum: 1)
            let process = try await pool.text("SELECT pg_backend_pid()::text")
            let other = try await PostgresConnection.connect(database.settings)
            _ = try await other.text("SELECT pg_terminate_backend(\(process), 60000)::text")
            #expect(try await pool.text("SELECT 'unharmed'") == "unharmed")
            await pool.close()
        }
    }
}

extension ConnectionPool {
    /// Executes a statement that returns one text.
    func text(_ sql: String) async throws -> String {
        try await withSession { session throws(PostgresError) in
            try session.execute(Statement(once: sql)).string(0, 0)
        }
    }
}
