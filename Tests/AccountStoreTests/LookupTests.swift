import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Plan of the ingest statement")
struct LookupTests {
    @Test(
        "A batch scans no table sequentially, neither an empty nor a large one.",
        arguments: [0, 5_000]
    )
    func indexes(people: Int) async throws {
        try await Store.with { store in
            try await store.populate(people)
            try await store.signIn("p", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(1))
            let writer = Store(database: store.database, connection: try await Store.writer(store.database))
            let (outcomes, scans) = try await writer.countingScans { session throws(PostgresError) in
                let batch: [ReceivedNotification] = [
                    .sample("email-disabled", sub: "p", at: .at(2), id: "a"),
                    .sample("consent-revoked", sub: "p", at: .at(3), id: "b"),
                    .sample("account-deleted", sub: "new person", at: .at(4), id: "c"),
                ]
                return try Notifications.record(batch, source: .endpoint, in: session).map(\.outcome)
            }
            #expect(outcomes == [.applied, .applied, .applied])
            #expect(scans.tables.isEmpty)
            // If a table has one page, the planner may use the primary key instead of the hash index.
            let hashes = people > 0 ? ["accounts_sub", "consents_account"] : []
            for index in hashes + ["account_sessions_consent"] {
                #expect(scans.indexes.contains(index), "\(index)")
            }
            await writer.connection.close()
        }
    }

    @Test("Finding a person or a session by its beginning, or a person by address, scans no table sequentially.")
    func prefixes() async throws {
        try await Store.with { store in
            try await store.populate(5_000)
            try await store.signIn("%_", at: .at(0), email: "a@example.com")
            let found: [(String, PersonMatch)] = [
                ("person 4321", .people(["person 4321"])), ("person 432", .people(["person 432"])),
                ("session 4321", .people(["person 4321"])), ("A@EXAMPLE.COM", .people(["%_"])),
                ("%", .people(["%_"])), ("", .ambiguous(subjects: [], sessions: [])),
                ("nobody@example.com", .ambiguous(subjects: [], sessions: [])),
            ]
            for (text, expected) in found {
                let (match, scans) = try await store.countingScans { session throws(PostgresError) in
                    try PersonMatch(text, in: session)
                }
                #expect(match == expected, "\(text)")
                #expect(scans.tables.isEmpty, "\(text)")
            }
        }
    }

    @Test("Finding the person of a dead letter by a beginning reads accounts and letters by their indexes.")
    func letterPrefixes() async throws {
        try await Store.with { store in
            try await store.populate(5_000)
            try await store.run(
                """
                INSERT INTO siwa.dead_letters (
                    received_at, last_received_at, reason, detail, body, token_digest, sub, verified_kid, verified_at
                )
                SELECT now(), now(), 'expired', '', '', sha256(i::text::bytea), 'letter ' || i, 'k', now()
                FROM generate_series(1, 5000) AS i;
                UPDATE siwa.dead_letters SET sub = 'person 4321' WHERE sub = 'letter 1';
                ANALYZE siwa.dead_letters
                """
            )
            let found: [(String, [String])] = [
                ("letter 4321", ["letter 4321"]), ("person 4321", ["person 4321"]), ("letter 499", ["letter 499"]),
                ("letter", ["letter 10"]), ("%", []), ("nobody", []),
            ]
            for (text, expected) in found {
                let (ids, scans) = try await store.countingScans { session throws(PostgresError) in
                    try LookupKey.letterSubject.matches(text, in: session)
                }
                #expect(Array(ids.prefix(1)) == expected, "\(text)")
                #expect(scans.tables.isEmpty, "\(text)")
            }
            let both = try await store.connection.withSession { session throws(PostgresError) in
                try LookupKey.letterSubject.matches("person 4321", in: session)
            }
            #expect(both == ["person 4321"], "an id that both have is one id")
        }
    }

    @Test("A change of state is a HOT update: it writes to no index of accounts or consents.")
    func staysOnItsPage() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            // A connection without statistics of its own.
            let writer = try await Store.writer(store.database)
            let moved = try await writer.transaction { session throws(PostgresError) in
                let types = ["email-disabled", "email-enabled", "consent-revoked", "account-deleted"]
                for (position, type) in types.enumerated() {
                    let received = ReceivedNotification.sample(type, sub: "p", at: .at(position + 1), id: type)
                    _ = try Notifications.record([received], source: .endpoint, in: session)
                }
                let rows = try session.execute(Statement(once: Self.moves))
                return [try rows.string(0, 0), try rows.string(1, 0)]
            }
            await writer.close()
            #expect(moved == ["accounts 3 3", "consents 1 1"])
        }
    }

    /// The numbers of rows that this transaction updated, and of HOT updates among them.
    private static let moves = """
        SELECT concat_ws(
            ' ', c.relname, pg_stat_get_xact_tuples_updated(c.oid), pg_stat_get_xact_tuples_hot_updated(c.oid)
        )
        FROM pg_class AS c
        WHERE c.oid IN ('siwa.accounts'::regclass, 'siwa.consents'::regclass)
        ORDER BY 1
        """
}

extension Store {
    /// Adds people with one consent and one session each, and updates the planner statistics.
    fileprivate func populate(_ people: Int) async throws {
        guard people > 0 else { return }
        try await run(
            """
            INSERT INTO siwa.accounts (team_id, sub) SELECT 'AAAAAAAAAA', 'person ' || i FROM generate_series(1, \(people)) AS i;
            INSERT INTO siwa.consents (account_id, app_id, authorized_at)
                SELECT account_id, 'com.example.one', '2026-01-01' FROM siwa.accounts;
            INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, signed_in_at)
                SELECT 'session ' || account_id, account_id, 'com.example.one', '2026-01-01', '2026-01-01' FROM siwa.accounts;
            ANALYZE siwa.accounts, siwa.consents, siwa.account_sessions
            """
        )
    }

    /// Runs statements in a transaction, and names the tables that they scan sequentially and the indexes that they use.
    fileprivate func countingScans<R: Sendable>(
        _ work: @escaping @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws -> (R, (tables: Set<String>, indexes: Set<String>)) {
        try await connection.transaction { session throws(PostgresError) in
            // The counters also contain earlier transactions of the connection.
            let before = try Self.scans(in: session)
            let result = try work(session)
            let scans = try Self.scans(in: session).subtracting(before)
            let (indexes, tables) = (scans.filter(\.isOfIndex), scans.filter { !$0.isOfIndex })
            return (result, (Set(tables.map(\.name)), Set(indexes.map(\.name))))
        }
    }

    /// How often each table has been scanned sequentially, and each index at all.
    private static func scans(in session: borrowing Session) throws(PostgresError) -> Set<Scans> {
        let counts = try session.execute(
            once: """
                SELECT relname::text, relkind = 'i', pg_stat_get_xact_numscans(oid)
                FROM pg_class
                WHERE relnamespace = 'siwa'::regnamespace AND pg_stat_get_xact_numscans(oid) > 0
                """
        )
        return Set(try counts.decode(Scans.init))
    }
}

private struct Scans: Hashable {
    let name: String
    let isOfIndex: Bool
    let count: Int64
}
