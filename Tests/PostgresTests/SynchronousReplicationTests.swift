import Postgres
import TestSupport
import Testing

@Suite("Commits that wait for synchronous replication", .timeLimit(.minutes(5)))
struct SynchronousReplicationTests {
    private static let insert = Statement("INSERT INTO public.t VALUES ($1) RETURNING n")

    /// Runs a test with a table and a connection whose commits never end.
    private func withoutStandby(_ body: (TestDatabase, PostgresConnection) async throws -> Void) async throws {
        try await TestDatabase.withServer { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.script("CREATE TABLE public.t (n bigint); SET synchronous_commit = on")
            try await database.blockCommits()
            try await body(database, connection)
            await connection.close()
        }
    }

    private func expectUnknown(_ error: PostgresError?, sourceLocation: SourceLocation = #_sourceLocation) {
        #expect(error?.code == .timedOut, sourceLocation: sourceLocation)
        #expect(error?.isOutcomeUnknown == true, sourceLocation: sourceLocation)
        #expect(error?.isRetryable == true, sourceLocation: sourceLocation)
    }

    @Test("When the deadline passes, the outcome is unknown, also in a pipeline, and the connection stays usable.")
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
                    try session.executePipelined(
                        Self.insert,
                        first: Binds { $0.append(Int64(3)) },
                        next: { next.popLast().map { value in Binds { $0.append(value) } } },
                        committed: { _ in committed += 1 }
                    )
                } catch {
                    expectUnknown(error)
                }
                return committed
            }
            #expect(committed == 0)
            // All rows are on this server, and reading does not wait for a standby.
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 4)
        }
    }

    @Test("When an administrator cancels the wait of a COMMIT, its outcome is unknown.")
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

    @Test("A confirmed commit succeeds, also after one that was not confirmed.")
    func confirmed() async throws {
        try await withoutStandby { database, connection in
            _ = await postgresError {
                try await connection.withSession(deadline: .seconds(2)) { session throws(PostgresError) in
                    try session.execute(script: "INSERT INTO public.t VALUES (1)")
                }
            }
            try await database.unblockCommits()
            try await connection.script("INSERT INTO public.t VALUES (2)")
            #expect(try await connection.integer("SELECT count(*) FROM public.t") == 2)
        }
    }
}
