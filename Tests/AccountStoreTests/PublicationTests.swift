import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Publication of changes")
struct PublicationTests {
    private func connect(_ store: Store) async throws -> PostgresConnection {
        try await PostgresConnection.connect(store.database.settings)
    }

    private func run(_ script: String, on connection: PostgresConnection) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }

    @discardableResult
    private func publish(_ store: Store) async throws -> ClosedRange<Int64>? {
        try await store.connection.withSession(Publication.publish)?.positions
    }

    /// The subs of the published changes in the order of their positions.
    private func published(_ store: Store) async throws -> [String] {
        try await store.texts("SELECT sub FROM siwa.changes ORDER BY position")
    }

    private func script(_ sql: String) -> @Sendable (borrowing Session) throws(PostgresError) -> Void {
        { session throws(PostgresError) in try session.execute(script: sql) }
    }

    private func signIn(_ sub: String) -> String {
        "SELECT siwa.record_sign_in('com.example.one', '\(sub)', signed_in_at => now())"
    }

    @Test("Committed changes get the next positions, once, and a round without changes assigns no transaction id.")
    func rounds() async throws {
        try await Store.with { store in
            #expect(try await publish(store) == nil)
            try await store.signIn("a", at: Store.now)
            try await store.signIn("b", at: Store.now)
            #expect(try await publish(store) == 1...2)
            #expect(try await publish(store) == nil)
            try await store.record(.sample("account-deleted", sub: "a", at: Store.now, id: "1"))
            #expect(try await publish(store) == 3...3)
            #expect(try await published(store) == ["a", "b", "a"])
            let assigned = try await store.connection.transaction { session throws(PostgresError) in
                _ = try Publication.publish(in: session)
                return try session.execute(once: "SELECT pg_current_xact_id_if_assigned() IS NOT NULL").bool(0, 0)
            }
            #expect(!assigned)
        }
    }

    @Test("A round without changes writes no WAL.")
    func emptyRounds() async throws {
        try await Store.with { store in
            try await store.signIn("a", at: Store.now)
            let round = "EXPLAIN (ANALYZE, WAL, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT siwa.publish_changes()"
            // The plan mentions WAL only if the round wrote any.
            var plan = try await store.texts(round)
            #expect(plan.contains { $0.contains("WAL: records=") }, "\(plan)")
            #expect(try await published(store) == ["a"])
            // With checksums, the first rounds may log the hint bits that they set.
            for _ in 0..<3 { plan = try await store.texts(round) }
            #expect(!plan.contains { $0.contains("WAL:") }, "\(plan)")
        }
    }

    @Test("Rounds, claims and outcomes are never compiled, and their plans never depend on the sizes of the tables.")
    func planning() async throws {
        try await Store.with { store in
            let names = try await store.texts(
                """
                SELECT proname::text FROM pg_proc
                WHERE pronamespace = 'siwa'::regnamespace
                    AND '{jit=off,enable_seqscan=off,plan_cache_mode=force_generic_plan}' <@ proconfig
                """
            )
            let needed: Set = ["publish_changes", "publication_age", "claim_deliveries", "settle_deliveries"]
            #expect(needed.isSubset(of: names), "\(names)")
        }
    }

    @Test("An open transaction holds up its own changes only, and they are published once after its commit.")
    func openTransaction() async throws {
        try await Store.with { store in
            try await store.database.withOpenTransaction(gate: 1, script("SELECT pg_current_xact_id()")) {
                try await store.database.withOpenTransaction(gate: 2, script(signIn("late"))) {
                    for sub in ["a", "b", "c"] {
                        try await store.signIn(sub, at: Store.now)
                        #expect(try await publish(store) != nil)
                    }
                    #expect(try await published(store) == ["a", "b", "c"])
                }
                #expect(try await publish(store) == 4...4)
                #expect(try await publish(store) == nil)
            }
            #expect(try await publish(store) == nil)
            #expect(try await published(store) == ["a", "b", "c", "late"])
        }
    }

    @Test("Of a transaction with savepoints, the changes that were kept are published.")
    func savepoints() async throws {
        try await Store.with { store in
            let transaction = """
                SAVEPOINT a; \(signIn("kept")); RELEASE a; SAVEPOINT b; \(signIn("undone")); ROLLBACK TO b;
                SAVEPOINT c; \(signIn("kept too"))
                """
            try await store.database.withOpenTransaction(script(transaction)) {
                #expect(try await publish(store) == nil)
                try await store.signIn("other", at: Store.now)
                #expect(try await publish(store) == 1...1)
            }
            #expect(try await publish(store) == 2...3)
            #expect(try await published(store) == ["other", "kept", "kept too"])
        }
    }

    @Test("A prepared transaction is published when it is committed, and never if it is rolled back.")
    func prepared() async throws {
        try await Store.with { store in
            let application = try await connect(store)
            let name = store.database.name
            for (sub, id) in [("kept", "k"), ("undone", "u")] {
                try await run("BEGIN; \(signIn(sub)); PREPARE TRANSACTION '\(name)_\(id)'", on: application)
            }
            await application.close()
            #expect(try await publish(store) == nil)
            try await store.signIn("other", at: Store.now)
            #expect(try await publish(store) == 1...1)
            try await store.run("ROLLBACK PREPARED '\(name)_u'")
            #expect(try await publish(store) == nil)
            try await store.run("COMMIT PREPARED '\(name)_k'")
            #expect(try await publish(store) == 2...2)
            #expect(try await published(store) == ["other", "kept"])
        }
    }

    @Test("Nothing but publication notifies: neither a notification, nor a sign-in, nor the end of a session.")
    func silentWriters() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: Store.now)
            try await store.openSession("one", of: "p", at: Store.now)
            let name = store.database.name
            let body = [
                signIn("q"), "SELECT siwa.end_session('one', 'operator')", "SELECT siwa.publish_changes()",
            ]
            for (number, statement) in body.enumerated() {
                // PostgreSQL prepares no transaction that notifies.
                func finish() async throws {
                    try await store.connection.withSession { session throws(PostgresError) in
                        try session.execute(script: "BEGIN")
                        let revocation = ReceivedNotification.sample(
                            "consent-revoked",
                            sub: "r\(number)",
                            at: Store.now,
                            id: "\(number)"
                        )
                        _ = try Notifications.record([revocation], source: .endpoint, in: session)
                        try session.execute(script: statement)
                        try session.execute(script: "PREPARE TRANSACTION '\(name)'")
                    }
                    try await store.run("COMMIT PREPARED '\(name)'")
                }
                if number < 2 {
                    try await finish()
                } else {
                    await #expect(throws: PostgresError.self) { try await finish() }
                }
            }
        }
    }

    @Test("A transaction that publishes leaves its own changes to the next round, also if its round is undone.")
    func ownChanges() async throws {
        try await Store.with { store in
            let application = try await connect(store)
            try await store.signIn("a", at: Store.now)
            try await run(
                "BEGIN; \(signIn("own")); SELECT siwa.publish_changes(); \(signIn("own too")); COMMIT",
                on: application
            )
            #expect(try await published(store) == ["a"])
            #expect(try await publish(store) == 2...3)
            try await store.signIn("b", at: Store.now)
            try await run(
                """
                BEGIN; SAVEPOINT s; SELECT siwa.publish_changes(); ROLLBACK TO s; \(signIn("after")); COMMIT
                """,
                on: application
            )
            #expect(try await publish(store) == 4...5)
            // The savepoint's transaction is a later one that has ended, so the own one precedes the end of the snapshot.
            try await run(
                """
                BEGIN; \(signIn("again")); SAVEPOINT s; \(signIn("undone")); ROLLBACK TO s;
                SELECT siwa.publish_changes(); \(signIn("again too")); COMMIT
                """,
                on: application
            )
            #expect(try await publish(store) == 6...7)
            #expect(try await published(store) == ["a", "own", "own too", "b", "after", "again", "again too"])
            await application.close()
        }
    }

    @Test("A round reads the history by its indexes only, on an empty, an unanalysed and an analysed table.")
    func plans() async throws {
        try await Store.with { store in
            let fill = """
                INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
                SELECT 1, 'x', 'consent', 'authorized', 'revoked', now() FROM generate_series(1, 20000)
                """
            for preparation in ["SELECT 1", "\(signIn("p"))", fill, "ANALYZE siwa.account_changes", signIn("q")] {
                try await store.run(preparation)
                let scans = try await store.connection.transaction { session throws(PostgresError) in
                    _ = try Publication.publish(in: session)
                    return try session.execute(
                        once: """
                            SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_xact_user_tables
                            WHERE relname IN ('account_changes', 'change_log')
                            """
                    ).int64(0, 0)
                }
                #expect(scans == 0, "\(preparation)")
                #expect(try await publish(store) == nil)
            }
        }
    }

    @Test("A round that publishes a transaction from before the last round does not read the whole log.")
    func lateTransaction() async throws {
        try await Store.with { store in
            try await store.run(
                """
                INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
                SELECT 1, 'x', 'consent', 'authorized', 'revoked', now() FROM generate_series(1, 20000);
                """
            )
            try await publish(store)
            try await store.run("ANALYZE")
            try await store.database.withOpenTransaction(script(signIn("late"))) {
                try await store.signIn("other", at: Store.now)
                #expect(try await publish(store) != nil)
            }
            // The counters also contain earlier transactions of the session.
            let entries = """
                SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint
                FROM pg_index WHERE indrelid IN ('siwa.change_log'::regclass, 'siwa.account_changes'::regclass)
                """
            let read = try await store.connection.transaction { session throws(PostgresError) in
                let before = try session.execute(once: entries).int64(0, 0)
                #expect(try Publication.publish(in: session)?.positions == 20_002...20_002)
                return try session.execute(once: entries).int64(0, 0) - before
            }
            #expect(read < 100)
        }
    }

    @Test("An end by an operator is a change of the session; a sign-out, a repetition and a refusal are none.")
    func sessionEnds() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: Store.now)
            for id in ["one", "two"] { try await store.openSession(id, of: "p", at: Store.now) }
            try await publish(store)
            try await store.run(
                """
                SELECT siwa.end_session('one', 'operator'); SELECT siwa.end_session('one', 'operator');
                SELECT siwa.end_session('two'); SELECT siwa.end_session('none', 'operator')
                """
            )
            #expect(try await publish(store) == 2...2)
            let change = try await store.texts(
                """
                SELECT concat_ws(' ', type, scope, sub, app_id, facet, from_state, to_state, sessions_ended, session_id, jti)
                FROM siwa.changes WHERE position = 2
                """
            )
            #expect(change == ["siwa.sessions.ended app p com.example.one session live ended 1 one"])
            let last = try #require(try await store.history("p").last)
            #expect(last.facet == "session" && last.sessionID == "one" && last.notificationID == nil)
            await #expect(throws: PostgresError.self) {
                try await store.run(
                    """
                    INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, sessions_ended)
                    VALUES (1, 'x', 'session', 'live', 'ended', now(), 1)
                    """
                )
            }
        }
    }

    @Test("Each change has the type of the catalogue, and what changes nothing is not published.")
    func types() async throws {
        try await Store.with { store in
            let now = WallTime.now()
            func at(_ seconds: Int64) -> WallTime { now - .seconds(1_000 - seconds) }
            try await store.signIn("p", at: at(10))
            try await store.openSession("old", of: "p", at: at(11))
            try await store.signIn("p", at: at(20))
            // A late revocation, which ends the session of the older sign-in only.
            try await store.record(.sample("consent-revoked", sub: "p", at: at(15), id: "late"))
            try await store.record(.sample("consent-revoked", sub: "p", at: at(30), id: "revoked"))
            try await store.record(.sample("consent-revoked", sub: "p", at: at(30), id: "revoked"))
            try await store.record(.sample("consent-revoked", sub: "p", at: at(25), id: "superseded"))
            try await store.record(.sample("email-disabled", sub: "p", at: at(40), id: "off", email: "a@b.example"))
            try await store.record(.sample("email-enabled", sub: "p", at: at(41), id: "on", email: "a@b.example"))
            try await store.record(.sample("account-deleted", sub: "p", at: at(50), id: "gone"))
            await #expect(throws: PostgresError.self) { try await store.signIn("p", at: at(60)) }
            #expect(try await publish(store) == 1...6)
            let types = try await store.texts(
                "SELECT concat_ws(' ', type, scope, jti) FROM siwa.changes ORDER BY position"
            )
            #expect(
                types == [
                    "siwa.consent.authorized app", "siwa.sessions.ended app late", "siwa.consent.revoked app revoked",
                    "siwa.email.forwarding_disabled team off", "siwa.email.forwarding_enabled team on",
                    "siwa.account.deleted team gone",
                ]
            )
        }
    }

    @Test("position_at finds the last change that was published before a time.")
    func positionAt() async throws {
        try await Store.with { store in
            #expect(try await store.texts("SELECT siwa.position_at(now())::text") == ["0"])
            for round in 0..<9 {
                for number in 0...(round % 3) { try await store.signIn("\(round) \(number)", at: Store.now) }
                try await publish(store)
            }
            let wrong = try await store.texts(
                """
                SELECT t.moment::text
                FROM (
                    SELECT published_at + d * interval '1 microsecond' AS moment
                    FROM siwa.change_log, unnest('{-1,0,1}'::integer[]) AS d
                    UNION ALL VALUES ('-infinity'::timestamptz), ('infinity')
                ) AS t
                WHERE siwa.position_at(t.moment)
                    <> (SELECT coalesce(max(position), 0) FROM siwa.change_log WHERE published_at < t.moment)
                """
            )
            #expect(wrong.isEmpty)
            #expect(try await store.texts("SELECT siwa.position_at('infinity')::text") == ["18"])
        }
    }

    @Test("For each person and facet, positions are in the order of the commits, whatever several writers do.")
    func order() async throws {
        let seed = UInt64.random(in: 0...UInt64.max)
        try await Store.with { store in
            try await withThrowingTaskGroup { group in
                for number in 0..<4 {
                    let random = SeededGenerator(seed: seed &+ UInt64(number))
                    group.addTask { try await self.live(store, random, number: number) }
                }
                try await group.waitForAll()
            }
            try await publish(store)
            let breaks = try await store.texts(
                """
                SELECT position::text
                FROM (
                    SELECT position, from_state, lag(to_state) OVER (
                        PARTITION BY account_id, facet, CASE facet WHEN 'consent' THEN app_id END ORDER BY position
                    ) AS before
                    FROM siwa.changes
                ) AS c
                WHERE before <> from_state
                """
            )
            #expect(breaks.isEmpty, "seed \(seed)")
            #expect(try await published(store).count > 20)
        }
    }

    /// Records random facts about five people, and publishes after each.
    private func live(_ store: Store, _ random: SeededGenerator, number: Int) async throws {
        var random = random
        let connection = try await Store.writer(store.database)
        let types = ["consent-revoked", "email-disabled", "email-enabled"]
        for step in 0..<100 {
            let sub = "p\(Int.random(in: 0..<5, using: &random))"
            let time = WallTime.now() - .milliseconds(Int.random(in: 0..<50, using: &random))
            let kind = Int.random(in: 0...types.count, using: &random)
            try await retrying {
                try await connection.withSession { session throws(PostgresError) in
                    if kind < types.count {
                        let id = "\(number) \(step)"
                        let notification = ReceivedNotification.sample(types[kind], sub: sub, at: time, id: id)
                        _ = try Notifications.record([notification], source: .endpoint, in: session)
                    } else {
                        let sql = "SELECT siwa.record_sign_in('com.example.one', $1, signed_in_at => $2)"
                        _ = try session.execute(once: sql, sub, time)
                    }
                    _ = try Publication.publish(in: session)
                }
            }
        }
        await connection.close()
    }

    /// Writers of the same people conflict, and then repeat what they did.
    private func retrying(_ work: () async throws -> Void) async throws {
        while true {
            do {
                return try await work()
            } catch let error as PostgresError where error.isRetryable || error.sqlState == .uniqueViolation {
                continue
            }
        }
    }
}
