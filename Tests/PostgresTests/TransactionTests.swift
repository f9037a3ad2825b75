import Postgres
import TestSupport
import Testing

@Suite("Transactions")
struct TransactionTests {
    private struct Table {
        static let definition =
            "CREATE TABLE public.t (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED, CHECK (n < 100))"
        static let insert = Statement("INSERT INTO public.t VALUES ($1)")
        static let count = "SELECT count(*) FROM public.t"
    }

    private static func insert(_ n: Int32, _ session: borrowing Session) throws(PostgresError) {
        _ = try session.execute(Table.insert, Binds { $0.append(n) })
    }

    @Test("A transaction is committed when its closure returns.")
    func commit() async throws {
        try await withConnection { connection in
            try await connection.script(Table.definition)
            let value = try await connection.transaction { session throws(PostgresError) in
                try Self.insert(1, session)
                return "returned"
            }
            #expect(value == "returned")
            #expect(try await connection.integer(Table.count) == 1)
        }
    }

    @Test("A transaction is rolled back when its closure throws.")
    func rollback() async throws {
        try await withConnection { connection in
            try await connection.script(Table.definition)
            let error = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    try Self.insert(1, session)
                    throw PostgresError(.usage, "changed my mind")
                }
            }
            #expect(error?.message == "changed my mind")
            #expect(try await connection.integer(Table.count) == 0)
        }
    }

    @Test("A failed statement rolls the transaction back, and the connection stays usable.")
    func failure() async throws {
        try await withConnection { connection in
            try await connection.script(Table.definition)
            let error = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    try Self.insert(1, session)
                    try Self.insert(100, session)
                }
            }
            #expect(error?.sqlState == .checkViolation)
            #expect(error?.constraintName == "t_n_check")
            #expect(error?.isOutcomeUnknown == false)
            #expect(try await connection.integer(Table.count) == 0)
        }
    }

    @Test("The transaction is rolled back even if the closure catches the error.")
    func caughtError() async throws {
        try await withConnection { connection in
            try await connection.script(Table.definition)
            let error = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    try Self.insert(1, session)
                    do { try Self.insert(100, session) } catch {}
                }
            }
            #expect(error?.code == .usage)
            #expect(try await connection.integer(Table.count) == 0)
        }
    }

    @Test("An error at COMMIT is thrown.")
    func deferredFailure() async throws {
        try await withConnection { connection in
            try await connection.script(Table.definition)
            let error = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    try Self.insert(1, session)
                    try Self.insert(1, session)
                }
            }
            #expect(error?.sqlState == .uniqueViolation)
            #expect(try await connection.integer(Table.count) == 0)
        }
    }

    @Test("A closure cannot end its transaction itself.")
    func ownCommit() async throws {
        try await withConnection { connection async throws in
            let error = await postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    try session.execute(script: "COMMIT")
                }
            }
            #expect(error?.code == .usage)
            #expect(try await connection.integer("SELECT 1") == 1)
        }
    }

    @Test("A transaction that a session leaves open is rolled back.")
    func leftOpen() async throws {
        try await withConnection { connection in
            try await connection.script(Table.definition)
            let error = await postgresError {
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(script: "BEGIN")
                    try Self.insert(1, session)
                }
            }
            #expect(error?.code == .usage)
            #expect(try await connection.integer(Table.count) == 0)
        }
    }

    @Test("A transaction runs at the requested level.", arguments: IsolationLevel.allCases)
    func isolation(level: IsolationLevel) async throws {
        try await withConnection { connection in
            let name = try await connection.transaction(level) { session throws(PostgresError) in
                try session.execute(Statement(once: "SELECT current_setting('transaction_isolation')")).string(0, 0)
            }
            #expect(name == level.rawValue.lowercased())
        }
    }
}
