import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import Synchronization
import Telemetry
import TestSupport
import Testing

@testable import Ingest

@Suite("The maintenance of the database")
struct DatabaseMaintenanceTests {
    /// One daemon's maintenance with everything that it logged and counted.
    private struct Daemon {
        let pool: ConnectionPool
        let registry = MetricsRegistry()
        let maintenance: DatabaseMaintenance
        let lines = Lines()

        init(_ database: TestDatabase, retention: Duration = .seconds(400 * 86_400)) {
            pool = database.pool(maximum: 2)
            var schedule = DatabaseMaintenance.Schedule()
            schedule.pause = .zero
            let lines = lines
            maintenance = DatabaseMaintenance(
                pool: pool,
                policy: MaintenancePolicy(
                    retention: retention,
                    sessionRetention: .seconds(30 * 86_400),
                    eraseAfter: .seconds(30 * 86_400),
                    deliveryRetention: .seconds(30 * 86_400)
                ),
                schedule: schedule,
                metrics: MaintenanceMetrics(registry: registry),
                log: Log(label: "test", level: .info, format: .text) {
                    lines.append(String(decoding: $0, as: UTF8.self))
                }
            )
        }
    }

    private final class Lines: Sendable {
        private let state = Mutex("")
        var text: String { state.withLock { $0 } }
        func append(_ line: String) { state.withLock { $0 += line } }
    }

    /// When it was asked whether the database is there.
    private final class Looks: Sendable {
        private let state = Mutex<[ContinuousClock.Instant]>([])
        var times: [ContinuousClock.Instant] { state.withLock { $0 } }

        /// Whether there were eight looks before.
        func isReady() -> Bool {
            state.withLock { times in
                times.append(.now)
                return times.count > 8
            }
        }
    }

    private static let old = """
        SELECT siwa.ensure_notification_partitions(now() - interval '1000 days', now() - interval '900 days');
        INSERT INTO siwa.accounts (team_id, sub, deleted_at, email, email_observed_at)
        SELECT 'AAAAAAAAAA', n::text, now() - n * interval '1 day', 'x@y', now() - interval '100 days'
        FROM generate_series(1, 60) AS n
        """

    /// One person on a page, more pages than one step scans; the first and the last are due.
    private static let large = """
        ALTER TABLE siwa.accounts SET (fillfactor = 10);
        INSERT INTO siwa.accounts (team_id, sub, deleted_at, email, email_observed_at)
        SELECT
            'AAAAAAAAAA', n::text, CASE WHEN n IN (1, 2200) THEN now() - interval '90 days' END, n || repeat('x', 1000),
            now() - interval '100 days'
        FROM generate_series(1, 2200) AS n
        """

    /// Holds the task as another daemon, until this daemon has asked for it.
    private static let comesBetween = """
        SELECT pg_advisory_xact_lock(hashtextextended('siwa.maintenance', 0));
        DO $$
        DECLARE
            start timestamptz := clock_timestamp();
        BEGIN
            LOOP
                PERFORM pg_stat_clear_snapshot();
                EXIT WHEN EXISTS (
                    SELECT FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid() AND query_start > start
                );
            END LOOP;
            -- It is answered before this transaction ends.
            PERFORM pg_sleep(0.05);
        END
        $$
        """

    /// Waits until one more session than `others` waits for a lock.
    private func waited(for kind: String, in database: TestDatabase, besides others: Int = 0) async throws {
        let observer = try await PostgresConnection.connect(database.settings)
        let waiting = Statement(
            once: """
                SELECT count(*) > \(others) FROM pg_locks
                WHERE NOT granted AND locktype = '\(kind)'
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                """
        )
        while try await !observer.withSession({ session throws(PostgresError) in
            try session.execute(waiting).bool(0, 0)
        }) { await Task.yield() }
        await observer.close()
    }

    private func prepare(_ database: TestDatabase, _ script: String) async throws {
        let connection = try await PostgresConnection.connect(database.settings)
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
        await connection.close()
    }

    @Test("does everything that is due to its end, says so, and leaves it alone until it is due again.")
    func once() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await prepare(database, Self.old)
            let daemon = Daemon(database)
            let effects = await daemon.maintenance.once()
            #expect((4...5).contains(effects.partitionsDropped.count))
            #expect((30...31).contains(effects.accountsErased))
            #expect(daemon.lines.text.contains("notifications older than the retention dropped"))
            #expect(daemon.lines.text.contains("personal data of deleted accounts erased"))
            let metrics = daemon.registry.prometheusText()
            #expect(metrics.contains(#"siwad_maintenance_runs_total{task="erasure",result="done"} 1"#))
            #expect(
                metrics.contains(#"siwad_maintenance_items_total{item="accounts-erased"} \#(effects.accountsErased)"#)
            )
            #expect(metrics.contains(#"siwad_maintenance_last_success_timestamp_seconds{task="partitions"} 1"#))
            #expect(await daemon.maintenance.once() == MaintenanceEffects())
            let other = Daemon(database)
            #expect(await other.maintenance.once() == MaintenanceEffects(), "another daemon finds it done")
            #expect(other.registry.prometheusText().contains(#"last_success_timestamp_seconds{task="erasure"} 1"#))
            await daemon.pool.close()
            await other.pool.close()
        }
    }

    @Test("goes on to the end of a large table, also where another daemon comes in between.", .timeLimit(.minutes(2)))
    func goesOn() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await prepare(database, Self.large)
            let daemon = Daemon(database)
            let (maintenance, other) = (daemon.maintenance, try await PostgresConnection.connect(database.settings))
            // The first piece waits for the table, the other daemon for that piece.
            let (effects, between) = try await database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "LOCK TABLE siwa.accounts")
            } _: { () async throws in
                // Not before: the table isn't so large that it couldn't be through with it already.
                let effects = Task { await maintenance.once() }
                try await waited(for: "relation", in: database)
                let between = Task {
                    try await other.transaction { session throws(PostgresError) in
                        try session.execute(script: Self.comesBetween)
                    }
                }
                try await waited(for: "advisory", in: database, besides: 1)
                return (effects, between)
            }
            try await between.value
            #expect(await effects.value.accountsErased == 2)
            #expect(daemon.registry.prometheusText().contains(#"runs_total{task="erasure",result="done"} 1"#))
            await other.close()
            await daemon.pool.close()
        }
    }

    @Test("is shared by daemons that look at the same time: everything is done once.")
    func daemons() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await prepare(database, Self.old)
            let daemons = (0..<4).map { _ in Daemon(database) }
            var sum = MaintenanceEffects()
            await withTaskGroup(of: MaintenanceEffects.self) { group in
                for daemon in daemons { group.addTask { await daemon.maintenance.once() } }
                for await effects in group { sum = sum + effects }
            }
            // The daemon that found another one at work left the rest to it.
            sum = sum + (await daemons[0].maintenance.once())
            #expect(Set(sum.partitionsDropped).count == sum.partitionsDropped.count)
            #expect((30...31).contains(sum.accountsErased))
            for daemon in daemons {
                #expect(!daemon.registry.prometheusText().contains(#"result="failed"} 1"#))
                await daemon.pool.close()
            }
        }
    }

    @Test("that fails is counted and said, and the other tasks are done all the same.")
    func failure() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await prepare(database, Self.old + "; DROP FUNCTION siwa.drop_notification_partition")
            let daemon = Daemon(database)
            let effects = await daemon.maintenance.once()
            #expect((30...31).contains(effects.accountsErased))
            #expect(daemon.lines.text.contains("maintenance failed; it tries again soon"))
            let metrics = daemon.registry.prometheusText()
            #expect(metrics.contains(#"siwad_maintenance_runs_total{task="retention",result="failed"} 1"#))
            #expect(metrics.contains(#"siwad_maintenance_runs_total{task="erasure",result="done"} 1"#))
            await daemon.pool.close()
        }
    }

    @Test("that fails after a restart keeps the time of the last success in its metric.")
    func failureAfterRestart() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await prepare(
                database,
                """
                INSERT INTO siwa.maintenance (task, finished_at) VALUES ('retention', to_timestamp(1700000000));
                DROP FUNCTION siwa.drop_notification_partition
                """
            )
            let daemon = Daemon(database)
            await daemon.maintenance.once()
            let metrics = daemon.registry.prometheusText()
            #expect(metrics.contains(#"siwad_maintenance_runs_total{task="retention",result="failed"} 1"#))
            #expect(metrics.contains(#"last_success_timestamp_seconds{task="retention"} 1700000000"#))
            await daemon.pool.close()
        }
    }

    @Test("begins with what is due as soon as the database is there.")
    func soon() async throws {
        try await TestDatabase.with(.siwa) { database in
            let daemon = Daemon(database)
            let (maintenance, registry, looks) = (daemon.maintenance, daemon.registry, Looks())
            let running = Task { await maintenance.run { looks.isReady() } }
            let done = #"siwad_maintenance_runs_total{task="erasure",result="done"} 1"#
            while !registry.prometheusText().contains(done) { await Task.yield() }
            // Once a second, as when the database is away for long, it would take eight.
            #expect(looks.times[8] - looks.times[0] < .seconds(5))
            running.cancel()
            await running.value
            await daemon.pool.close()
        }
    }

    @Test("gives way to a long reader and drops what is due afterwards.")
    func givesWay() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await prepare(database, Self.old)
            let daemon = Daemon(database)
            try await database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT count(*) FROM siwa.notifications")
            } _: { () async throws in
                #expect(await daemon.maintenance.once().partitionsDropped.isEmpty)
            }
            #expect(daemon.lines.text.contains("maintenance gave way"))
            #expect(await !daemon.maintenance.once().partitionsDropped.isEmpty)
            await daemon.pool.close()
        }
    }
}
