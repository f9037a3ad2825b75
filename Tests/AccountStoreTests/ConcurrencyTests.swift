import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Concurrent writers")
struct ConcurrencyTests {
    @Test("The same notifications on several concurrent connections have one effect, and no sign-in is lost.")
    func writers() async throws {
        try await TestDatabase.with(.siwa) { database in
            let people = (0..<20).map { "person\($0)" }
            let batches = (0..<10).map { batch in
                people.map {
                    ReceivedNotification.sample(
                        batch == 9 ? "account-deleted" : "consent-revoked",
                        sub: $0,
                        at: .at(batch),
                        id: "\(batch) \($0)"
                    )
                }
            }
            try await withThrowingTaskGroup { group in
                for _ in 0..<3 {
                    group.addTask {
                        let connection = try await Store.writer(database)
                        for batch in batches.shuffled() { try await Self.record(batch.shuffled(), on: connection) }
                        await connection.close()
                    }
                }
                group.addTask {
                    let connection = try await PostgresConnection.connect(database.settings)
                    for person in people {
                        try await connection.withSession { session throws(PostgresError) in
                            let (client, subject) = (ClientID("com.example.one"), Subject(person))
                            do throws(PostgresError) {
                                try Applications.recordSignIn(
                                    client: client,
                                    subject: subject,
                                    signedInAt: .at(20),
                                    in: session
                                )
                                try Applications.openSession(
                                    client: client,
                                    subject: subject,
                                    session: person,
                                    createdAt: .at(20),
                                    in: session
                                )
                            } catch let error where error.sqlState?.rawValue == "SW002" {
                                // The deletion came first.
                            }
                        }
                    }
                    await connection.close()
                }
                try await group.waitForAll()
            }
            let store = Store(database: database, connection: try await Store.writer(database))
            #expect(try await store.texts("SELECT count(*)::text FROM siwa.notifications") == ["200"])
            #expect(try await store.texts("SELECT count(*)::text FROM siwa.live_sessions") == ["0"])
            let deletions = try await store.texts(
                "SELECT sub FROM siwa.account_history WHERE facet = 'account' ORDER BY sub COLLATE \"C\""
            )
            #expect(deletions == people.sorted())
            await store.connection.close()
        }
    }

    @Test(
        "A row that another writer changed or inserted after the snapshot is a serialization failure.",
        arguments: [
            ("email-disabled", "p", "com.example.one", "UPDATE siwa.accounts SET forwarding_enabled_at = now()"),
            ("consent-revoked", "p", "com.example.one", "UPDATE siwa.consents SET authorized_at = now()"),
            (
                "consent-revoked", "q", "com.example.one",
                "INSERT INTO siwa.accounts (team_id, sub) VALUES ('AAAAAAAAAA', 'q')"
            ),
            (
                "consent-revoked", "p", "com.example.two",
                "INSERT INTO siwa.consents (account_id, app_id) SELECT account_id, 'com.example.two' FROM siwa.accounts"
            ),
        ]
    )
    func staleSnapshot(type: String, sub: String, app: String, write: String) async throws {
        try await Store.with { store in
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(0), id: "a"))
            let event = ReceivedNotification.sample(type, sub: sub, at: .at(1), id: "b", app: app)
            // Awaited below: it takes its snapshot and waits until the other writer commits its row.
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: write)
            } _: {
                let attempt = Task { try await store.record(event) }
                try await Self.untilRecordingWaits(store.database)
                return attempt
            }
            let error = await #expect(throws: PostgresError.self) { try await attempt.value }
            #expect(error?.sqlState == .serializationFailure)
            #expect(try await store.texts("SELECT jti FROM siwa.notifications") == ["a"])
        }
    }

    @Test("A batch that inserts people waits for no batch that waits for it, also if its snapshot lacks a person.")
    func insertAndUpdate() async throws {
        try await Store.with { store in
            let writer = try await Store.writer(store.database)
            let revocation = { @Sendable (sub: String, batch: String) in
                ReceivedNotification.sample("consent-revoked", sub: sub, at: .at(1), id: "\(sub) \(batch)")
            }
            // Both batches are awaited below. They wait until the transaction that holds "m" ends.
            let (first, second) = try await store.database.withOpenTransaction { session throws(PostgresError) in
                let person = "INSERT INTO siwa.accounts (team_id, sub) VALUES ('AAAAAAAAAA', 'm')"
                try session.execute(script: "\(person); DELETE FROM siwa.accounts")
            } _: {
                let first = Task {
                    try await store.record(revocation("a", "first"), revocation("m", "first"), revocation("y", "first"))
                }
                try await Self.untilRecordingWaits(store.database)
                let other = Store(database: store.database, connection: writer)
                try await other.record(.sample("email-enabled", sub: "y", at: .at(0), id: "y"))
                let disabled = ReceivedNotification.sample("email-disabled", sub: "y", at: .at(1), id: "y second")
                let second = Task { try await other.record(revocation("a", "second"), disabled) }
                try await Self.untilRecordingWaits(store.database, count: 2)
                return (first, second)
            }
            let error = await #expect(throws: PostgresError.self) { try await first.value }
            #expect(error?.sqlState == .serializationFailure)
            _ = try await second.value
            let recorded = try await store.texts("SELECT jti FROM siwa.notifications ORDER BY 1")
            #expect(recorded == ["a second", "y", "y second"])
            await writer.close()
        }
    }

    @Test("A batch of sign-ins leaves a batch of notifications that waits for it, before PostgreSQL ends one of them.")
    func signInsAndNotifications() async throws {
        try await Store.with { store in
            try await store.signInWhole("first", of: "y", at: .at(0))
            let other = Store(database: store.database, connection: try await Store.writer(store.database))
            // The notifications insert "a" and wait until the transaction that holds "m" ends. Then they update "y".
            let (notifications, signIns) = try await store.database.withOpenTransaction {
                session throws(PostgresError) in
                let person = "INSERT INTO siwa.accounts (team_id, sub) VALUES ('AAAAAAAAAA', 'm')"
                try session.execute(script: "\(person); DELETE FROM siwa.accounts WHERE sub = 'm'")
            } _: {
                let batch = ["a", "m", "y"].map {
                    ReceivedNotification.sample("email-disabled", sub: $0, at: .at(1), id: $0)
                }
                let notifications = Task { try await store.record(batch[0], batch[1], batch[2]) }
                try await Self.untilRecordingWaits(store.database)
                // Until the sign-ins wait for "a", unless they have already left it.
                let (moments, moment) = AsyncStream<Void>.makeStream()
                let signIns = Task {
                    defer { moment.finish() }
                    return try await other.settleTogether(
                        [.sample(0, of: "y", at: .at(2)), .sample(0, of: "a", at: .at(2))],
                        unreserved: [.sample("y", of: "y", at: .at(2)), .sample("a", of: "a", at: .at(2))],
                        waits: false
                    )
                }
                let observation = Task {
                    try await Self.untilRecordingWaits(store.database, count: 2)
                    moment.finish()
                }
                for await _ in moments {}
                observation.cancel()
                return (notifications, signIns)
            }
            let error = await #expect(throws: PostgresError.self) { try await signIns.value }
            #expect(error?.sqlState == .lockNotAvailable)
            #expect(try await notifications.value == [.applied, .applied, .applied])
            await other.connection.close()
        }
    }

    @Test("A sign-in with an address to another app locks the person before the consent, like the writer.")
    func signInElsewhere() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            let writer = try await Store.writer(store.database)
            let (locks, locked) = AsyncStream<Void>.makeStream()
            async let written: Void = writer.transaction { session throws(PostgresError) in
                try session.execute(script: "UPDATE siwa.accounts SET revision = revision + 1")
                locked.finish()
                // While the sign-in waits for the person, it must not hold a lock on the consent.
                while try session.execute(Self.waitingForRow).int64(0, 0) == 0 {}
                try session.execute(
                    script: """
                        INSERT INTO siwa.consents (account_id, app_id)
                        SELECT account_id, 'com.example.two' FROM siwa.accounts
                        """
                )
            }
            for await _ in locks {}
            try await store.signIn("p", at: .at(1), client: "com.example.two", email: "a@b.example")
            try await written
            #expect(try await store.state("p", app: "com.example.two")?.state == "authorized")
            await writer.close()
        }
    }

    /// The number of sessions of this database that wait for a transaction that wrote a row.
    private static let waitingForRow = Statement(
        once: """
            SELECT count(*) FROM pg_locks
            WHERE locktype IN ('transactionid', 'tuple') AND NOT granted
                AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())
            """
    )

    @Test("Transactions that open a session of one person and then sign the person in do not deadlock.")
    func openAndSignIn() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            let (client, person) = (ClientID("com.example.one"), Subject("p"))
            try await store.database.withOpenTransaction { session throws(PostgresError) in
                try Applications.openSession(
                    client: client,
                    subject: person,
                    session: "a",
                    createdAt: .at(1),
                    in: session
                )
            } _: {
                // A transaction that waits here waits for another one that may wait for it.
                try await store.connection.transaction { session throws(PostgresError) in
                    try session.execute(script: "SET LOCAL lock_timeout = '1s'")
                    try Applications.openSession(
                        client: client,
                        subject: person,
                        session: "b",
                        createdAt: .at(1),
                        in: session
                    )
                    try Applications.recordSignIn(client: client, subject: person, signedInAt: .at(2), in: session)
                }
            }
            #expect(try await store.state("p")?.authorizedAt == .at(2))
            let live = try await store.texts("SELECT session_id FROM siwa.live_sessions ORDER BY 1")
            #expect(live == ["a", "b"])
        }
    }

    @Test(
        "Ending a person's sessions also ends a session that replaces another one while the caller waits.",
        arguments: [false, true]
    )
    func endWhileRotating(asOperator: Bool) async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            for id in ["a", "z"] { try await store.openSession(id, of: "p", at: .at(0)) }
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT siwa.rotate_session('a', 'b')")
            } _: {
                let attempt = Task {
                    guard asOperator else {
                        return try await store.texts("SELECT siwa.end_sessions('com.example.one', 'p')::text")
                    }
                    return try await store.connection.transaction { session throws(PostgresError) in
                        try Sessions.end(SessionFilter(subject: "p", limit: nil), by: "kim", note: "x", in: session)
                    }
                }
                try await Self.untilRecordingWaits(store.database)
                return attempt
            }
            let ended = try await attempt.value
            #expect(asOperator ? ended.sorted() == ["b", "z"] : ended == ["2"])
            #expect(try await store.texts("SELECT session_id FROM siwa.live_sessions").isEmpty)
            let audited = try await store.texts("SELECT affected::text FROM siwa.operator_actions")
            #expect(audited == (asOperator ? ["2"] : []))
        }
    }

    private static func untilRecordingWaits(_ database: TestDatabase, count: Int64 = 1) async throws {
        let connection = try await PostgresConnection.connect(database.settings)
        var waiting: Int64 = 0
        while waiting < count {
            waiting = try await connection.withSession { session throws(PostgresError) in
                try session.execute(waitingForLock).int64(0, 0)
            }
        }
        await connection.close()
    }

    private static let waitingForLock = Statement(
        once: """
            SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'advisory'
            """
    )

    private static func record(_ batch: [ReceivedNotification], on connection: PostgresConnection) async throws {
        while try await lostConflict(batch, on: connection) {}
    }

    private static func lostConflict(
        _ batch: [ReceivedNotification],
        on connection: PostgresConnection
    ) async throws -> Bool {
        do {
            try await connection.withSession { session throws(PostgresError) in
                _ = try Notifications.record(batch, source: .endpoint, in: session)
            }
            return false
        } catch {
            guard error.sqlState == .serializationFailure else { throw error }
            return true
        }
    }
}
