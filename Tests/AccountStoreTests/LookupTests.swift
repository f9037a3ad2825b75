import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("How a batch finds what it is about")
struct LookupTests {
    @Test(
        "A batch reads no table from end to end, be it empty, where that is tempting, or large.",
        arguments: [0, 5_000]
    )
    func indexes(people: Int) async throws {
        try await Store.with { store in
            try await store.populate(people)
            try await store.signIn("p", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(1))
            let writer = Store(database: store.database, connection: try await Store.writer(store.database))
            // What the other connection has counted so far comes before what is counted here.
            _ = try await store.searched("tables", by: "seq_scan")
            let tables = try await writer.searched("tables", by: "seq_scan")
            let indexes = try await writer.searched("indexes", by: "idx_scan")
            let outcomes = try await writer.record(
                .sample("email-disabled", sub: "p", at: .at(2), id: "a"),
                .sample("consent-revoked", sub: "p", at: .at(3), id: "b"),
                .sample("account-deleted", sub: "nobody yet", at: .at(4), id: "c")
            )
            #expect(outcomes == [.applied, .applied, .applied])
            #expect(try await writer.searched("tables", by: "seq_scan") == tables)
            let searched = try await writer.searched("indexes", by: "idx_scan")
            // A tree of one page costs as little as a hash.
            let hashes = people > 0 ? ["accounts_sub", "consents_account"] : []
            for index in hashes + ["account_sessions_consent"] {
                #expect(searched[index, default: 0] > indexes[index, default: 0], "\(index)")
            }
            await writer.connection.close()
        }
    }

    @Test("A change of state writes to no index of persons or consents: the row stays on its page.")
    func staysOnItsPage() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            // A connection that has counted nothing yet.
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

    /// Rows that this transaction has updated, and those of them that no index learned of.
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
    /// People with a consent and a session each, and the statistics that the server gathers of them by itself in time.
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

    /// How often siwad's tables or indexes, those that were, have been searched in a way that the server counts.
    fileprivate func searched(_ what: String, by column: String) async throws -> [String: Int] {
        // What this connection has counted it tells, and is told, in its own time unless asked.
        try await run("SELECT pg_stat_force_next_flush()")
        let name = what == "tables" ? "relname" : "indexrelname"
        let rows = try await texts(
            "SELECT \(name) || ' ' || \(column) FROM pg_stat_user_\(what) WHERE schemaname = 'siwa' AND \(column) > 0"
        )
        return Dictionary(
            uniqueKeysWithValues: rows.compactMap { row in
                let parts = row.split(separator: " ")
                return Int(parts[1]).map { (String(parts[0]), $0) }
            }
        )
    }
}
