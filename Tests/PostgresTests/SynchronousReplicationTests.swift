import Postgres
import TestSupport
import Testing

@Suite("Commits that wait for synchronous replication", .timeLimit(.minutes(5)))
struct SynchronousReplicationTests {
    private static let insert = Statement("INSERT INTO public.t VALUES ($1) RETURNING n")

    /// Runs a test with a connection whose commits wait for ever, in a database with a table.
    private func withoutStandby(_ body: (TestDatabase, PostgresConnection) async throws -> Void) async throws {
        try await TestDatabase.withServer { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.script("CREATE TABLE public.t (n bigint); SET synchronous_commit = on")
            try await database.losePartner()
            try await body(database, connection)
            await connection.close()
        }
    }

    private func expectUnknown(_ error: PostgresError?, sourceLocation: SourceLocation = #_sourceLocation) {
        #expect(error?.code == .timedOut, sourceLocation: sourceLocation)
        #expect(error?.isOutcomeUnknown == true, sourceLocation: sourceLocation)
        #expect(error?.isRetryable == true, sourceLocation: sourceLocation)
    }

    @Test("The outcome is unknown when the deadline passes; the connection goes on, also for one after another.")
    func deadline() async throws {
        try await withoutStandby { _, connection in
            expectUnknown(
                await postgresError {
                    try await connection.withSession(deadline: .seconds(2)) { session throws(PostgresError) in
                        _ = try session.execute(Self.insert, Binds { $0.append(Int64(1)) })
                    }
                }
            )
            expectUnknown(
                await postgresError {
                    try await connection.withSession(deadline: .seconds(2)) { session throws(PostgresError) in
                        try session.execute(script: "INSERT INTO public.t VALUES (2)")
                    }
                }
            )
            let committed = try await connection.withSession(deadline: .seconds(2)) {
                session throws(PostgresError) in
                var committed = 0
                var next: [Int64] = [4]
                do throws(PostgresError) {
                    try session.execute(
                        Self.insert,
                        inTurn: Binds { $0.append(Int64(3)) },
                        next: { next.popLast().map { value in Binds { $0.append(value) } } },
                        committed: { _ in committed += 1 }
                    )
                } catch {
                    expectUnknown(error)
                }
                return committed
            }
            #expect(committed == 0)
            // All of them are on this server, and reading waits for nobody.
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 4)
        }
    }

    @Test("The outcome of a COMMIT is unknown when an administrator has it stop waiting.")
    func administrator() async throws {
        try await withoutStandby { database, connection in
            let administrator = try await PostgresConnection.connect(database.settings)
            async let error = postgresError {
                try await connection.transaction { session throws(PostgresError) in
                    _ = try session.execute(Self.insert, Binds { $0.append(Int64(1)) })
                }
            }
            let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            while try await administrator.integer(cancel) == 0 {}
            expectUnknown(await error)
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 1)
            await administrator.close()
        }
    }

    @Test("A commit that is confirmed in time is one, also after one that wasn't.")
    func confirmed() async throws {
        try await withoutStandby { database, connection in
            _ = await postgresError {
                try await connection.withSession(deadline: .seconds(2)) { session throws(PostgresError) in
                    try session.execute(script: "INSERT INTO public.t VALUES (1)")
                }
            }
            try await database.forgetPartner()
            try await connection.script("INSERT INTO public.t VALUES (2)")
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 2)
        }
    }
}
