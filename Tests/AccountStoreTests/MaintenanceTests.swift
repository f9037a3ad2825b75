import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

extension Store {
    /// Keeps notifications for 400 days and deleted people's data for 30.
    static let policy = MaintenancePolicy(
        retention: .days(400),
        sessionRetention: .days(30),
        eraseAfter: .days(30)
    )

    /// Does a task to its end, as a daemon that looks at it at `now`.
    @discardableResult
    func maintain(_ task: MaintenanceTask, now: WallTime = Store.now) async throws -> MaintenanceEffects {
        try await Self.maintain(task, now: now, on: connection)
    }

    static func maintain(
        _ task: MaintenanceTask,
        now: WallTime,
        on connection: PostgresConnection
    ) async throws -> MaintenanceEffects {
        var sum = MaintenanceEffects()
        var previous: MaintenanceStep?
        while true {
            let step = try await connection.transaction { [previous] session throws(PostgresError) in
                try Maintenance.step(of: task, after: previous, policy, now: now, in: session)
            }
            sum = sum + step.effects
            previous = step
            if step.isLast { return sum }
        }
    }
}

extension Duration {
    static func days(_ days: Int) -> Duration { .seconds(days * 86_400) }
}

@Suite("Maintenance")
struct MaintenanceTests {
    private static let partitions = """
        SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'siwa.notifications'::regclass AND c.relname < 'notifications_y2026m11'
        ORDER BY 1
        """

    private func turn(
        _ task: MaintenanceTask,
        on connection: PostgresConnection,
        every interval: Duration = .zero
    ) async throws -> MaintenanceTurn {
        try await connection.transaction { session throws(PostgresError) in
            try Maintenance.turn(for: task, every: interval, in: session)
        }
    }

    @Test("The month of the present and the two after it get their partitions, once.")
    func ahead() async throws {
        try await Store.with { store in
            let later = WallTime(seconds: 2_000_000_000)
            #expect(try await store.maintain(.partitions, now: later).partitionsCreated == 3)
            #expect(try await store.maintain(.partitions, now: later).partitionsCreated == 0)
            let names = try await store.texts(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'notifications_y2033%' ORDER BY 1"
            )
            #expect(names == ["notifications_y2033m05", "notifications_y2033m06", "notifications_y2033m07"])
            let indexes = try await store.texts(
                "SELECT count(*)::text FROM pg_indexes WHERE tablename = 'notifications_y2033m05'"
            )
            #expect(indexes == ["3"], "jti, received_at and sub")
        }
    }

    @Test("Months that ended before the retention are dropped, oldest first; every state stays as it was.")
    func retention() async throws {
        try await Store.with { store in
            let year = WallTime(seconds: 1_735_700_000)
            try await store.connection.withSession { session throws(PostgresError) in
                _ = try Notifications.ensurePartitions(from: year, through: year + .days(60), in: session)
            }
            try await store.signIn("p", at: year)
            try await store.record(.sample("consent-revoked", sub: "p", at: year + .days(20), id: "a"))
            let now = WallTime(seconds: 1_738_368_000) + .days(400)
            let before = try await store.state("p")
            let effects = try await store.maintain(.retention, now: now)
            #expect(effects.partitionsDropped == ["notifications_y2025m01"], "it ended 400 days before, to the second")
            #expect(try await store.texts("SELECT jti FROM siwa.notifications").isEmpty)
            #expect(try await store.texts(Self.partitions).first == "notifications_y2025m02")
            #expect(try await store.state("p") == before)
            #expect(try await store.history("p").count == 2)
            #expect(try await store.maintain(.retention, now: now - .seconds(1)) == MaintenanceEffects())
        }
    }

    @Test("A notification of a month that was dropped is recorded again without any effect, and goes again.")
    func late() async throws {
        try await Store.with { store in
            let old = Store.now - .days(500)
            let notification = ReceivedNotification.sample("account-deleted", sub: "p", at: old, id: "a")
            for _ in 0..<2 {
                try await store.connection.withSession { session throws(PostgresError) in
                    _ = try Notifications.ensurePartitions(from: old, through: old, in: session)
                }
                try await store.record(notification)
                #expect(try await store.maintain(.retention).partitionsDropped.count == 1)
            }
            #expect(try await store.history("p").count == 1)
            #expect(try await store.texts("SELECT deleted_at::text FROM siwa.accounts").count == 1)
        }
    }

    @Test("A month whose table was detached and kept its name is said to be so, and how to mend it, and is mended so.")
    func detached() async throws {
        try await Store.with { store in
            let month = "siwa.notifications_y2026m09"
            try await store.run("ALTER TABLE siwa.notifications DETACH PARTITION \(month)")
            let error = await #expect(throws: PostgresError.self) { try await store.maintain(.partitions) }
            #expect(error?.sqlState == SQLState(rawValue: "55000"))
            #expect(error?.message.contains(month) == true)
            let remedies = try #require(error?.hint).matches(of: /ALTER TABLE [^,]+?(?=,| to another one)/)
            #expect(remedies.count == 2)
            try await store.run(String(remedies[0].output))
            try await store.maintain(.partitions)
            try await store.record(.sample("consent-revoked", sub: "p", at: Store.now, id: "a"))

            try await store.run(
                """
                CREATE SCHEMA aside;
                ALTER TABLE siwa.notifications DETACH PARTITION \(month);
                \(remedies[1].output) aside
                """
            )
            #expect(try await store.maintain(.partitions).partitionsCreated == 1)
            try await store.record(.sample("consent-revoked", sub: "q", at: Store.now, id: "b"))
            #expect(try await store.texts("SELECT jti FROM siwa.notifications") == ["b"])
        }
    }

    @Test("Months are made and dropped alike, however the caller's session writes times and reads strings.")
    func callersSettings() async throws {
        try await Store.with { store in
            try await store.run(
                "SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'; SET standard_conforming_strings = off"
            )
            let old = WallTime(seconds: 1_735_700_000)
            try await store.connection.withSession { session throws(PostgresError) in
                _ = try Notifications.ensurePartitions(from: old, through: old, in: session)
            }
            let bounds = "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'notifications_y2025m01'"
            try await store.run("SET DateStyle = 'ISO'; SET TimeZone = 'UTC'")
            #expect(
                try await store.texts(bounds) == [
                    "FOR VALUES FROM ('2025-01-01 00:00:00+00') TO ('2025-02-01 00:00:00+00')"
                ]
            )
            #expect(try await store.maintain(.retention).partitionsDropped == ["notifications_y2025m01"])
        }
    }

    @Test("Dead letters that were resolved before the retention go; open ones stay, however old.")
    func letters() async throws {
        try await Store.with { store in
            try await store.run(
                """
                INSERT INTO siwa.dead_letters (
                    received_at, last_received_at, reason, detail, status, body, token_digest, verified_kid, verified_at,
                    resolved_at, resolved_by, resolved_by_role
                )
                SELECT
                    t, t, 'expired', n::text, s, 'b', sha256(n::text::bytea), 'k', t,
                    CASE WHEN s <> 'open' THEN t END, CASE WHEN s <> 'open' THEN 'kim' END,
                    CASE WHEN s <> 'open' THEN 'ops' END
                FROM generate_series(1, 1200) AS n,
                    LATERAL (SELECT CASE n % 3 WHEN 0 THEN 'open' WHEN 1 THEN 'replayed' ELSE 'discarded' END) AS x (s),
                    LATERAL (SELECT to_timestamp(1790000000) - CASE WHEN n <= 900 THEN 401 ELSE 399 END * interval '1 day') AS y (t)
                """
            )
            #expect(try await store.maintain(.retention).lettersDeleted == 600)
            let left = try await store.texts(
                "SELECT status || count(*) FROM siwa.dead_letters GROUP BY status ORDER BY 1"
            )
            #expect(left == ["discarded100", "open400", "replayed100"])
        }
    }

    @Test("While somebody reads notifications, dropping gives up at once instead of holding writers back.")
    func givesWay() async throws {
        try await Store.with { store in
            let old = Store.now - .days(500)
            try await store.connection.withSession { session throws(PostgresError) in
                _ = try Notifications.ensurePartitions(from: old, through: old, in: session)
            }
            try await store.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT count(*) FROM siwa.notifications")
            } _: { () async throws in
                let state = await Self.sqlState { try await store.maintain(.retention) }
                #expect(state == .lockNotAvailable)
            }
            #expect(try await store.maintain(.retention).partitionsDropped.count == 1)
        }
    }

    @Test("One daemon at a time does a task, and none again before its interval is over.")
    func turns() async throws {
        try await Store.with { store in
            try await store.database.withOpenTransaction { session throws(PostgresError) in
                let turn = try Maintenance.turn(for: .erasure, every: .zero, in: session)
                guard case .ours(let now) = turn else { throw PostgresError(.usage, "nobody else is at it") }
                _ = try Maintenance.step(of: .erasure, Store.policy, now: now, in: session)
            } _: { () async throws in
                #expect(try await turn(.erasure, on: store.connection) == .taken)
                #expect(try await turn(.partitions, on: store.connection) == .taken)
            }
            guard case .ours(let now) = try await turn(.erasure, on: store.connection) else {
                Issue.record("it is nobody else's any more")
                return
            }
            let again = try await turn(.erasure, on: store.connection, every: .days(1))
            guard case .notDue(let finishedAt) = again else {
                Issue.record("it was done just now")
                return
            }
            #expect(finishedAt <= now)
            let times = try await store.connection.withSession { session throws(PostgresError) in
                try Maintenance.lastTimes(in: session)
            }
            #expect(Array(times.keys) == [.erasure])
        }
    }

    @Test("A task that was finished in the future, by a clock that had run ahead, is due, and then as any other.")
    func finishedInTheFuture() async throws {
        try await Store.with { store in
            try await store.run(
                "INSERT INTO siwa.maintenance (task, finished_at) SELECT 'erasure', now() + interval '5 years'"
            )
            guard case .ours(let now) = try await turn(.erasure, on: store.connection, every: .days(1)) else {
                Issue.record("it would not be done for five years")
                return
            }
            try await store.maintain(.erasure, now: now)
            #expect(try await turn(.erasure, on: store.connection, every: .days(1)) == .notDue(finishedAt: now))
        }
    }

    @Test("The rights to read and write rows are enough; who may not delete rows may not drop them by the month.")
    func rights() async throws {
        try await Store.with { store in
            let role = store.database.name + "_role"
            try await store.run(
                """
                CREATE ROLE \(role) LOGIN;
                CREATE ROLE \(role)_reader LOGIN;
                GRANT USAGE ON SCHEMA siwa TO \(role), \(role)_reader;
                GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA siwa TO \(role);
                GRANT SELECT ON ALL TABLES IN SCHEMA siwa TO \(role)_reader;
                """
            )
            let old = Store.now - .days(500)
            try await store.connection.withSession { session throws(PostgresError) in
                _ = try Notifications.ensurePartitions(from: old, through: old, in: session)
            }
            let reader = try await connect(store, as: role + "_reader")
            let refusal = await Self.sqlState {
                try await reader.withSession { session throws(PostgresError) in
                    _ = try session.execute(
                        Statement(once: "SELECT siwa.drop_notification_partition(now() - interval '1 year')")
                    )
                }
            }
            #expect(refusal == SQLState(rawValue: "42501"))
            let daemon = try await connect(store, as: role)
            for task in MaintenanceTask.allCases {
                let effects = try await Store.maintain(task, now: Store.now, on: daemon)
                #expect(effects.partitionsDropped.count == (task == .retention ? 1 : 0))
            }
            await reader.close()
            await daemon.close()
            try await store.run("DROP OWNED BY \(role), \(role)_reader; DROP ROLE \(role), \(role)_reader")
        }
    }

    @Test(
        "A session that took a role without rights makes and drops no month, whatever the role that logged in may do."
    )
    func rightsOfTheRoleInForce() async throws {
        try await Store.with { store in
            let role = store.database.name + "_pool"
            try await store.run("CREATE ROLE \(role) LOGIN IN ROLE siwad_daemon, siwad_application")
            let pool = try await connect(store, as: role)
            let calls = [
                "SELECT siwa.ensure_notification_partitions(now(), now())",
                "SELECT siwa.drop_notification_partition(now() - interval '2 days')",
            ]
            for call in calls {
                #expect(await Self.sqlState { try await Self.run(call, on: pool) } == nil, "\(call)")
            }
            try await Self.run("SET ROLE siwad_application", on: pool)
            for call in calls {
                let state = await Self.sqlState { try await Self.run(call, on: pool) }
                #expect(state == .insufficientPrivilege, "\(call)")
            }
            await pool.close()
            try await store.run("DROP ROLE \(role)")
        }
    }

    private static func run(_ script: String, on connection: PostgresConnection) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }

    private func connect(_ store: Store, as role: String) async throws -> PostgresConnection {
        let conninfo = "\(store.database.conninfo) user=\(role)"
        return try await .connect(ConnectionSettings(conninfo: conninfo, applicationName: "tests"))
    }

    private static func sqlState<R>(_ body: () async throws -> R) async -> SQLState? {
        do {
            _ = try await body()
            return nil
        } catch {
            return (error as? PostgresError)?.sqlState
        }
    }
}
