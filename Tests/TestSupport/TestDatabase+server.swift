import LocalPostgres
import Postgres
import Testing

extension TestDatabase {
    /// Runs a test with a database in a server of its own, whose settings it may change by `ALTER SYSTEM`.
    package static func withServer<R>(
        _ template: DatabaseTemplate = .empty,
        _ body: (TestDatabase) async throws -> R
    ) async throws -> R {
        let cluster = try await LocalCluster.startTemporary()
        let result: Result<R, any Error>
        do {
            let conninfo = cluster.conninfo()
            let settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
            try await template.prepare(settings)
            result = .success(try await body(TestDatabase(name: "postgres", conninfo: conninfo, settings: settings)))
        } catch {
            result = .failure(error)
        }
        await cluster.stop()
        return try result.get()
    }

    /// From here on each commit in the server waits for a standby that doesn't exist. The server is the test's own.
    package func losePartner() async throws {
        let observer = try await PostgresConnection.connect(settings)
        try await Self.run("ALTER SYSTEM SET synchronous_standby_names = 'nosuch'", on: observer)
        try await Self.run("SELECT pg_reload_conf()", on: observer)
        // The server's processes read it one after the other: it is in force when a commit waits.
        let probe = try await PostgresConnection.connect(settings)
        try await Self.run("SET synchronous_commit = on", on: probe)
        async let commits: Void = {
            // Ends with the connection.
            while (try? await Self.run("SELECT pg_current_xact_id()", on: probe)) != nil {}
        }()
        let waiting = Statement(
            once: "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )
        var isWaiting = false
        while !isWaiting {
            isWaiting = try await observer.withSession { session throws(PostgresError) in
                try session.execute(waiting).int64(0, 0) > 0
            }
        }
        await commits
        await probe.close()
        await observer.close()
    }

    /// Ends ``losePartner()``, also for commits that wait.
    package func forgetPartner() async throws {
        let observer = try await PostgresConnection.connect(settings)
        try await Self.run("ALTER SYSTEM RESET synchronous_standby_names", on: observer)
        try await Self.run("SELECT pg_reload_conf()", on: observer)
        await observer.close()
    }

    private static func run(_ statement: String, on connection: PostgresConnection) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: statement) }
    }
}
