import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

extension Store {
    /// Retention of 400 days; personal data of deleted accounts and settled deliveries are kept for 30 days.
    static let policy = MaintenancePolicy(
        retention: .days(400),
        sessionRetention: .days(30),
        eraseAfter: .days(30),
        deliveryRetention: .days(30)
    )

    /// Performs all steps of a task at the time `now`.
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

    private func claim(
        _ task: MaintenanceTask,
        on connection: PostgresConnection,
        every interval: Duration = .zero
    ) async throws -> MaintenanceClaim {
        try await connection.transaction { session throws(PostgresError) in
            try Maintenance.claim(task, every: interval, in: session)
        }
    }

    @Test("The partitions of the current month and the next two are created once.")
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
            #expect(indexes == ["4"], "jti, received_at, recorded_at and sub")
        }
    }

    @Test("Months that ended before the retention are dropped, oldest first; no state changes.")
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

    @Test("A notification of a dropped month is recorded again without any effect, and dropped again.")
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

    @Test("If a detached table blocks a month, the error names it and two remedies, and both remedies work.")
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

    @Test("Creating and dropping months does not depend on the session's DateStyle, TimeZone or string syntax.")
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

    @Test("Dead letters that were resolved before the retention are deleted; open letters stay, however old.")
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

    @Test("While another session reads notifications, dropping fails immediately instead of blocking writers.")
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

    @Test("One daemon at a time performs a task, and none performs it again before its interval has passed.")
    func claims() async throws {
        try await Store.with { store in
            try await store.database.withOpenTransaction { session throws(PostgresError) in
                let claim = try Maintenance.claim(.erasure, every: .zero, in: session)
                guard case .granted(let now, _) = claim else {
                    throw PostgresError(.usage, "no other daemon holds the claim")
                }
                _ = try Maintenance.step(of: .erasure, Store.policy, now: now, in: session)
            } _: { () async throws in
                #expect(try await claim(.erasure, on: store.connection) == .heldElsewhere)
                #expect(try await claim(.partitions, on: store.connection) == .heldElsewhere)
            }
            guard case .granted(let now, _) = try await claim(.erasure, on: store.connection) else {
                Issue.record("the claim was not granted")
                return
            }
            let again = try await claim(.erasure, on: store.connection, every: .days(1))
            guard case .notDue(let finishedAt) = again else {
                Issue.record("the task was finished just now")
                return
            }
            #expect(finishedAt <= now)
            let times = try await store.connection.withSession { session throws(PostgresError) in
                try Maintenance.lastTimes(in: session)
            }
            #expect(Array(times.keys) == [.erasure])
        }
    }

    @Test(
        "A task that was finished in the future, by a clock that was ahead, is due, and then has its normal interval."
    )
    func finishedInTheFuture() async throws {
        try await Store.with { store in
            try await store.run(
                "INSERT INTO siwa.maintenance (task, finished_at) SELECT 'erasure', now() + interval '5 years'"
            )
            guard case .granted(let now, _) = try await claim(.erasure, on: store.connection, every: .days(1)) else {
                Issue.record("the task would not be performed for five years")
                return
            }
            try await store.maintain(.erasure, now: now)
            #expect(try await claim(.erasure, on: store.connection, every: .days(1)) == .notDue(finishedAt: now))
        }
    }

    @Test("Rights to read and write rows suffice; a role without DELETE may not drop a month.")
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
        "Delivered and discarded deliveries go after the retention with their attempts; waiting and dead ones stay."
    )
    func deliveries() async throws {
        try await Store.with { store in
            try await store.run(
                """
                INSERT INTO siwa.endpoints (name, url) VALUES ('shop', 'https://a.example');
                INSERT INTO siwa.deliveries (
                    endpoint_id, position, account_id, status, next_attempt_at, reason, first_failed_at, resolved_at, resolved_by,
                    created_at
                )
                SELECT
                    endpoint_id, number, 1, status, CASE WHEN status IN ('pending', 'retry') THEN now() END, 'failed', now(),
                    CASE WHEN status IN ('delivered', 'discarded') THEN ended_at END,
                    CASE WHEN status = 'discarded' THEN 'kim' END, '2020-01-01'
                FROM (SELECT endpoint_id FROM siwa.endpoints) AS e, (
                    SELECT row_number() OVER () AS number, status, ended_at
                    FROM unnest('{pending,retry,dead,discarded,delivered}'::text[]) AS status,
                        unnest(ARRAY[
                            '\(Store.now.iso8601)'::timestamptz - interval '31 d',
                            '\(Store.now.iso8601)'::timestamptz - interval '29 d'
                        ]) AS ended_at
                ) AS s;
                INSERT INTO siwa.deliveries (endpoint_id, position, account_id, status, next_attempt_at, resolved_at)
                SELECT endpoint_id, 100 + i, 1, 'delivered', NULL, '2020-01-01'
                FROM siwa.endpoints, generate_series(1, 1200) AS i;
                INSERT INTO siwa.delivery_attempts
                    (endpoint_id, position, attempt, attempted_at, duration, reason, detail)
                SELECT endpoint_id, position, 1, now(), '1 s', 'failed', 'words' FROM siwa.deliveries WHERE position <= 10
                """
            )
            // One transaction locks only a part of them.
            let first = try await store.connection.transaction { session throws(PostgresError) in
                try Maintenance.step(of: .deliveries, Store.policy, now: Store.now, in: session)
            }
            #expect(first.effects.deliveriesDeleted == 500 && !first.isLast)
            #expect(try await store.maintain(.deliveries).deliveriesDeleted == 702)
            let left = "SELECT status || ' ' || count(*) FROM siwa.deliveries GROUP BY status ORDER BY 1"
            #expect(try await store.texts(left) == ["dead 2", "delivered 1", "discarded 1", "pending 2", "retry 2"])
            #expect(try await store.texts("SELECT count(*)::text FROM siwa.delivery_attempts") == ["8"])
        }
    }

    @Test(
        "SET ROLE to a role without rights prevents creating and dropping months, whatever the login role may do."
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
