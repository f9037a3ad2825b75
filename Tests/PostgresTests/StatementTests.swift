import Postgres
import TestSupport
import Testing

@Suite("Statements")
struct StatementTests {
    private static let preparedCount = "SELECT count(*) FROM pg_prepared_statements"

    @Test("A statement is prepared once on each connection.")
    func reuse() async throws {
        let statement = Statement("SELECT $1")
        try await withConnection { connection in
            for value in 1...3 {
                let result = try await connection.withSession { session throws(PostgresError) in
                    try session.execute(statement, Binds { $0.append(Int64(value)) }).int64(0, 0)
                }
                #expect(result == Int64(value))
            }
            #expect(try await connection.integer(Self.preparedCount) == 1)
        }
    }

    @Test("A statement made by init(once:) leaves no prepared statement.")
    func once() async throws {
        try await withConnection { connection in
            _ = try await connection.integer("SELECT 1")
            #expect(try await connection.integer(Self.preparedCount) == 0)
        }
    }

    @Test("Binds of other types than the first time are refused.")
    func otherTypes() async throws {
        let statement = Statement("SELECT $1")
        try await withConnection { connection in
            try await connection.withSession { session throws(PostgresError) in
                _ = try session.execute(statement, Binds { $0.append("a") })
            }
            let error = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    _ = try session.execute(statement, Binds { $0.append(Int64(1)) })
                }
            }
            #expect(error?.code == .usage)
        }
    }

    @Test("After its table has changed, a statement is prepared again.")
    func changedTable() async throws {
        let statement = Statement("SELECT * FROM public.t")
        let execute: @Sendable (borrowing Session) throws(PostgresError) -> Int = { session throws(PostgresError) in
            try session.execute(statement).count
        }
        try await withConnection { connection in
            try await connection.script("CREATE TABLE public.t (a integer); INSERT INTO public.t VALUES (1)")
            #expect(try await connection.withSession(execute) == 1)
            try await connection.script("ALTER TABLE public.t ADD COLUMN b integer")
            let error = await postgresError { try await connection.withSession(execute) }
            #expect(error?.sqlState == .featureNotSupported)
            #expect(try await connection.withSession(execute) == 1)
        }
    }

    @Test("A statement that the server has deallocated fails as retryable, and is prepared again.")
    func forgotten() async throws {
        let statement = Statement("SELECT 1")
        let execute: @Sendable (borrowing Session) throws(PostgresError) -> Int64 = { session throws(PostgresError) in
            try session.execute(statement).int64(0, 0)
        }
        try await withConnection { connection in
            _ = try await connection.withSession(execute)
            try await connection.script("DEALLOCATE ALL")
            let error = await postgresError { try await connection.withSession(execute) }
            #expect(error?.isRetryable == true)
            #expect(try await connection.withSession(execute) == 1)
        }
    }

    @Test("A script is one transaction.")
    func script() async throws {
        try await withConnection { connection async throws in
            let error = await postgresError {
                try await connection.script(
                    "CREATE TABLE public.t (a integer); SELECT 1 / 0; CREATE TABLE public.u (a integer)"
                )
            }
            #expect(error?.sqlState == SQLState(rawValue: "22012"))
            #expect(try await connection.integer("SELECT count(*) FROM pg_tables WHERE tablename IN ('t', 'u')") == 0)
        }
    }

    @Test("COPY is refused.")
    func copy() async throws {
        try await withConnection { connection in
            let error = await postgresError { try await connection.script("COPY pg_class TO STDOUT") }
            #expect(error?.code == .usage)
            #expect(connection.isClosed)
        }
    }
}
