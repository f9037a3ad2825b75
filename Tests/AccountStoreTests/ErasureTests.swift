import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport
import Testing

@Suite("Erasure of the personal data of deleted accounts")
struct ErasureTests {
    private static let address = "x@privaterelay.appleid.com"

    /// Open letters about these people, each for an app: `('p', 'com.example.one')`.
    private static func letters(_ people: String) -> String {
        """
        INSERT INTO siwa.dead_letters (
            received_at, last_received_at, reason, detail, body, token_digest, sub, aud, verified_kid, verified_at
        )
        SELECT t, t, 'expired', '', aud::bytea, sha256((sub || aud)::bytea), sub, aud, 'k', t
        FROM (VALUES \(people)) AS v (sub, aud), to_timestamp(1790000000) AS t
        """
    }

    /// `p` was deleted 31 days ago, `q` 29 days ago, `r` not at all; each has an address and two notifications.
    private func withPeople(_ body: (Store) async throws -> Void) async throws {
        try await Store.with { store in
            for (sub, days) in [("p", 31), ("q", 29), ("r", nil)] as [(String, Int?)] {
                try await store.signIn(sub, at: .at(-90 * 86_400), email: Self.address, emailIsPrivate: true)
                try await store.openSession("session of \(sub)", of: sub, at: .at(-90 * 86_400))
                try await store.record(
                    .sample("email-disabled", sub: sub, at: .at(-3_600), id: "e\(sub)", email: "y@z")
                )
                guard let days else { continue }
                try await store.connection.withSession { session throws(PostgresError) in
                    _ = try Notifications.ensurePartitions(from: .at(-40 * 86_400), through: .at(0), in: session)
                }
                try await store.record(.sample("account-delete", sub: sub, at: .at(-days * 86_400), id: "d\(sub)"))
            }
            try await body(store)
        }
    }

    @Test("When it is due, erasure deletes the address and all tokens, and keeps the tombstone and every state.")
    func erases() async throws {
        try await withPeople { store in
            let before = try await store.state("p")
            let effects = try await store.maintain(.erasure)
            #expect((effects.accountsErased, effects.tokensErased) == (1, 2))
            let after = try #require(try await store.state("p"))
            #expect((after.email, after.emailIsPrivate) == (nil, nil))
            #expect((after.state, after.deletedAt) == (before?.state, before?.deletedAt))
            #expect(after.authorizedAt == before?.authorizedAt)
            #expect(try await store.session("session of p")?.endReason == "account-deleted")
            #expect(try await store.history("p").count == 3)
            #expect(
                try await store.texts("SELECT jti FROM siwa.notifications WHERE jws IS NULL ORDER BY 1") == [
                    "dp", "ep",
                ]
            )
            let addresses = try await store.texts(
                "SELECT sub || ' ' || email FROM siwa.accounts WHERE email <> '' ORDER BY 1"
            )
            #expect(addresses == ["q y@z", "r y@z"])
            #expect(try await store.maintain(.erasure) == MaintenanceEffects())
        }
    }

    @Test("Events may contain the present address of a person, and none once it is erased.")
    func addressesOfEvents() async throws {
        try await withPeople { store in
            func addresses() async throws -> [String] {
                try await store.connection.withSession { session throws(PostgresError) in
                    let ids = try session.execute(once: "SELECT account_id FROM siwa.accounts")
                        .decode { (id: Int64) in id }
                    return try ChangeLog.addresses(of: ids + [-1], in: session).values.sorted()
                }
            }
            #expect(try await addresses() == ["y@z", "y@z", "y@z"])
            try await store.maintain(.erasure)
            #expect(try await addresses() == ["y@z", "y@z"])
        }
    }

    @Test("No replay and no late or later observation stores an address or a token again.")
    func staysErased() async throws {
        try await withPeople { store in
            try await store.maintain(.erasure)
            let tombstone = try await store.texts("SELECT a::text FROM siwa.accounts AS a WHERE sub = 'p'")
            try await store.record(.sample("email-disabled", sub: "p", at: .at(-3_600), id: "ep", email: "y@z"))
            try await store.connection.withSession { session throws(PostgresError) in
                _ = try Notifications.ensurePartitions(from: .at(-80 * 86_400), through: .at(0), in: session)
            }
            let outcomes = try await store.record(
                .sample("email-disabled", sub: "p", at: .at(-80 * 86_400), id: "older", email: "old@z"),
                .sample("email-disabled", sub: "p", at: .at(-3_600), id: "same", email: "z@z"),
                .sample("email-disabled", sub: "q", at: .at(-3_600), id: "another's", email: "y@z")
            )
            #expect(outcomes == [.superseded, .superseded, .superseded])
            #expect(try await store.texts("SELECT a::text FROM siwa.accounts AS a WHERE sub = 'p'") == tombstone)
            try await store.record(.sample("email-enabled", sub: "p", at: .at(0), id: "later", email: "new@z"))
            await #expect(throws: PostgresError.self) {
                try await store.signIn("p", at: .at(0), email: "new@z", emailIsPrivate: false)
            }
            #expect(try await store.state("p")?.email == nil)
            let tokens = try await store.texts("SELECT jti FROM siwa.notifications WHERE jws IS NOT NULL AND sub = 'p'")
            #expect(tokens.isEmpty)
            #expect(
                try await store.texts("SELECT jti FROM siwa.notifications WHERE jws <> '' AND jti = 'another''s'").count
                    == 1
            )
        }
    }

    @Test("The bodies of the person's dead letters are erased, including later letters, and open letters are closed.")
    func letters() async throws {
        try await withPeople { store in
            try await store.run(
                Self.letters(
                    """
                    ('p', 'com.example.one'), ('p', 'com.example.none'), ('p', 'com.example.other'),
                    ('q', 'com.example.one')
                    """
                )
            )
            #expect(try await store.maintain(.erasure).lettersErased == 2)
            let rows = try await store.texts(
                """
                SELECT concat_ws(' ', sub, aud, status, resolved_by, octet_length(body) > 0) FROM siwa.dead_letters
                ORDER BY sub, aud
                """
            )
            #expect(
                rows == [
                    "p com.example.none discarded siwad f", "p com.example.one discarded siwad f",
                    "p com.example.other open t", "q com.example.one open t",
                ],
                "com.example.other belongs to another team: its p is a different person"
            )
            #expect(try await store.maintain(.erasure).lettersErased == 0)
            let audit = try await store.texts(
                "SELECT concat_ws(' ', operator, action, affected) FROM siwa.operator_actions"
            )
            #expect(audit == ["siwad dead-letters discard 2"])
            try await store.run(Self.letters("('p', 'com.example.two')"))
            #expect(try await store.maintain(.erasure).lettersErased == 1)
        }
    }

    @Test("A letter whose body was erased stays discarded, because it can't be processed any more.")
    func reopening() async throws {
        try await withPeople { store in
            try await store.run(Self.letters("('p', 'com.example.one'), ('q', 'com.example.one')"))
            _ = try await store.maintain(.erasure)
            try await store.run(
                "UPDATE siwa.dead_letters SET status = 'discarded', resolved_at = now(), resolved_by = 'x' WHERE sub = 'q'"
            )
            let resolution = try await store.connection.transaction { session throws(PostgresError) in
                try DeadLetters.reopen(
                    DeadLetterFilter(),
                    after: 0,
                    through: .max,
                    limit: 9,
                    note: "again",
                    in: session
                )
            }
            #expect(resolution.changed == 1 && resolution.refused == 1)
            let rows = try await store.texts("SELECT sub || ' ' || status FROM siwa.dead_letters ORDER BY sub")
            #expect(rows == ["p discarded", "q open"])
        }
    }

    @Test("A letter that was stored unverified is erased after a replay has stored which person it is about.")
    func replayedLetter() async throws {
        try await Store.with { store in
            let received = ReceivedNotification.sample(
                "email-enabled",
                sub: "p",
                at: .at(-40 * 86_400),
                id: "j",
                email: Self.address
            )
            let (token, note) = (received.notification.token, "the key is known")
            let fate = try await store.connection.transaction { session throws(PostgresError) in
                try Notifications.ensurePartitions(from: .at(-50 * 86_400), through: .at(0), in: session)
                let letter = ReceivedDeadLetter(
                    .keysUnavailable(token: token),
                    tokenDigest: [UInt8](repeating: 1, count: 32),
                    receivedAt: received.receivedAt
                )
                _ = try DeadLetters.record([letter], in: session)
                let id = try DeadLetters.claim(DeadLetterFilter(), after: 0, through: .max, limit: 9, in: session)[0].id
                let recorded = try Notifications.record([received], source: .replay, in: session)
                let (notification, outcome) = (received.notification, recorded[0].outcome)
                let replayed = ReplayedDeadLetter(id: id, outcome: outcome, notification: notification)
                try DeadLetters.resolve([replayed], by: "kim", note: note, in: session)
                return try DeadLetters.find(id: id, in: session)?.letter
            }
            let letter = try #require(fate)
            #expect((letter.status, letter.outcome) == (.replayed, "applied"))
            #expect((letter.resolvedBy, letter.note) == ("kim", note))
            #expect((letter.notificationID, letter.audience) == ("j", "com.example.one"))
            #expect((letter.subject, letter.eventType) == ("p", "email-enabled"))
            #expect((letter.verifiedKeyID, letter.verifiedAt) == ("test", letter.resolvedAt))

            try await store.record(.sample("account-deleted", sub: "p", at: .at(-31 * 86_400), id: "d"))
            #expect(try await store.maintain(.erasure).lettersErased == 1)
            let left = try await store.texts("SELECT concat_ws(' ', status, octet_length(body)) FROM siwa.dead_letters")
            #expect(left == ["replayed 0"])
        }
    }

    @Test("Locked rows are skipped and erased the next time.")
    func passesOver() async throws {
        try await withPeople { store in
            try await store.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT FROM siwa.accounts WHERE sub = 'p' FOR UPDATE")
            } _: { () async throws in
                #expect(try await store.maintain(.erasure).accountsErased == 0)
            }
            #expect(try await store.maintain(.erasure).accountsErased == 1)
        }
    }

    @Test("Many accounts are erased in steps.")
    func many() async throws {
        try await Store.with { store in
            try await store.run(
                """
                INSERT INTO siwa.accounts (team_id, sub, deleted_at, email, email_observed_at)
                SELECT 'AAAAAAAAAA', n::text, to_timestamp(1780000000), 'x@y', to_timestamp(1780000000)
                FROM generate_series(1, 250) AS n
                """
            )
            let first = try await store.connection.transaction { session throws(PostgresError) in
                try Maintenance.step(of: .erasure, Store.policy, now: Store.now, in: session)
            }
            #expect((first.effects.accountsErased, first.isLast) == (100, false))
            #expect(try await store.maintain(.erasure).accountsErased == 150)
        }
    }

    @Test("A large table is scanned in steps, to its last page.")
    func stretches() async throws {
        try await Store.with { store in
            // One person per page.
            try await store.run(
                """
                ALTER TABLE siwa.accounts SET (fillfactor = 10);
                INSERT INTO siwa.accounts (team_id, sub, deleted_at, email, email_observed_at)
                SELECT
                    'AAAAAAAAAA', n::text, CASE WHEN n IN (1, 2200) THEN to_timestamp(1780000000) END,
                    n || repeat('x', 1000), to_timestamp(1780000000)
                FROM generate_series(1, 2200) AS n
                """
            )
            let first = try await store.connection.transaction { session throws(PostgresError) in
                try Maintenance.step(of: .erasure, Store.policy, now: Store.now, in: session)
            }
            #expect((first.effects.accountsErased, first.isLast) == (1, false))
            let second = try await store.connection.transaction { session throws(PostgresError) in
                try Maintenance.step(of: .erasure, after: first, Store.policy, now: Store.now, in: session)
            }
            #expect((second.effects.accountsErased, second.isLast) == (1, true))
        }
    }

    @Test("Erasure while facts arrive in any order changes no state that follows from them.", arguments: 0..<3)
    func converges(part: Int) async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let eraser = try await PostgresConnection.connect(database.settings)
            var generator = SeededGenerator(seed: UInt64(part) &* 104_729 &+ 20_261_121)
            var deliveries: [Ledger.Delivery] = []
            var models: [String: Model] = [:]
            for index in 0..<60 {
                let history = History(using: &generator)
                let prefix = "\(index)/"
                deliveries.append(Ledger.Delivery(prefix: prefix, remaining: history.delivery(using: &generator)))
                models[prefix] = Model(history.facts)
            }
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: Notifications.writerSettings)
                try Notifications.ensurePartitions(from: Ledger.time(0), through: Ledger.time(10), in: session)
            }
            let end = Ledger.time(0) + .days(3_650)
            let isOver = Mutex(false)
            async let erasing: Void = {
                while !isOver.withLock({ $0 }) {
                    _ = try await Store.maintain(.erasure, now: end, on: eraser)
                }
            }()
            try await Ledger.record(deliveries, on: connection, using: &generator)
            isOver.withLock { $0 = true }
            try await erasing
            _ = try await Store.maintain(.erasure, now: end, on: eraser)
            let observed = try await Observed.all(since: Ledger.start, on: connection)
            for (prefix, model) in models {
                let differences = (observed[prefix] ?? Observed(since: Ledger.start)).differences(from: model)
                #expect(differences.isEmpty, "part \(part), delivery \(prefix)")
            }
            let left = try await connection.withSession { session throws(PostgresError) in
                try session.execute(Statement(once: Self.leftOver)).int64(0, 0)
            }
            #expect(left == 0)
            await connection.close()
            await eraser.close()
        }
    }

    private static let leftOver = """
        SELECT count(*) FROM siwa.accounts AS a LEFT JOIN siwa.notifications AS n USING (sub, team_id)
        WHERE a.deleted_at IS NOT NULL AND (a.email IS NOT NULL OR n.jws IS NOT NULL)
        """
}
