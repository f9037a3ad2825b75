import LocalPostgres
package import Postgres
import Testing

/// A database for one test, in the cluster of this test process.
package struct TestDatabase: Sendable {
    package let name: String
    /// Connects as superuser.
    package let conninfo: String
    /// The conninfo with default limits.
    package let settings: ConnectionSettings

    /// Runs a test with a new database, which is dropped afterwards, even if connections to it are open.
    package static func with<R>(
        _ template: DatabaseTemplate = .empty,
        _ body: (TestDatabase) async throws -> R
    ) async throws -> R {
        let database = try await create(template)
        do {
            let result = try await body(database)
            await TestCluster.shared.drop(database.name)
            return result
        } catch {
            await TestCluster.shared.drop(database.name)
            throw error
        }
    }

    /// Creates a database for a suite to share. It exists until the process ends.
    package static func create(_ template: DatabaseTemplate = .empty) async throws -> TestDatabase {
        let name = try await TestCluster.shared.createDatabase(template)
        return try await named(name)
    }

    package func pool(maximum: Int = 4) -> ConnectionPool {
        ConnectionPool(settings, maximum: maximum)
    }

    static func named(_ name: String) async throws -> TestDatabase {
        let conninfo = try await TestCluster.shared.conninfo(database: name)
        let settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        return TestDatabase(name: name, conninfo: conninfo, settings: settings)
    }
}

extension TestDatabase {
    /// Runs a test with a separate server, whose settings it may change by `ALTER SYSTEM`.
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

    /// Makes each commit in the server wait for a standby that does not exist. Use it only with ``withServer(_:_:)``.
    package func blockCommits() async throws {
        let observer = try await PostgresConnection.connect(settings)
        try await Self.run("ALTER SYSTEM SET synchronous_standby_names = 'nosuch'", on: observer)
        try await Self.run("SELECT pg_reload_conf()", on: observer)
        // The server's processes reload the setting at different times. It is in force when a commit waits.
        let probe = try await PostgresConnection.connect(settings)
        try await Self.run("SET synchronous_commit = on", on: probe)
        async let commits: Void = {
            // Ends when the connection is terminated.
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

    /// Ends ``blockCommits()``, also for waiting commits.
    package func unblockCommits() async throws {
        let observer = try await PostgresConnection.connect(settings)
        try await Self.run("ALTER SYSTEM RESET synchronous_standby_names", on: observer)
        try await Self.run("SELECT pg_reload_conf()", on: observer)
        await observer.close()
    }

    private static func run(_ statement: String, on connection: PostgresConnection) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: statement) }
    }
}

extension TestDatabase {
    /// Runs `body` while a transaction of another connection is open that has done `work`. It commits afterwards.
    ///
    /// - Parameter key: of the advisory lock for which the open transaction waits; another one for a second transaction.
    package func withOpenTransaction<R>(
        gate key: Int = 47_110_815,
        _ work: @escaping @Sendable (borrowing Session) throws(PostgresError) -> Void,
        _ body: () async throws -> R
    ) async throws -> R {
        let gate = try await PostgresConnection.connect(settings)
        let other = try await PostgresConnection.connect(settings)
        try await gate.withSession { session throws(PostgresError) in
            try session.execute(script: "SELECT pg_advisory_lock(\(key))")
        }
        // A flood on a busy machine takes longer than a connection's usual deadline.
        async let transaction: Void = other.transaction(deadline: .seconds(300)) { session throws(PostgresError) in
            try work(session)
            try session.execute(script: "SELECT pg_advisory_xact_lock_shared(\(key))")
        }
        let result: Result<R, any Error>
        do {
            while try await !isAtGate(key, gate) { await Task.yield() }
            result = .success(try await body())
        } catch {
            result = .failure(error)
        }
        try await gate.withSession { session throws(PostgresError) in
            try session.execute(script: "SELECT pg_advisory_unlock(\(key))")
        }
        try await transaction
        await other.close()
        await gate.close()
        return try result.get()
    }

    private func isAtGate(_ key: Int, _ connection: PostgresConnection) async throws -> Bool {
        try await connection.withSession { session throws(PostgresError) in
            let rows = try session.execute(Self.waiting, Binds { $0.append("\(key)") })
            return try rows.bool(0, 0)
        }
    }

    private static let waiting = Statement(
        """
        SELECT EXISTS (
            SELECT FROM pg_locks
            WHERE locktype = 'advisory' AND NOT granted AND objid = $1::text::oid
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        )
        """
    )
}
