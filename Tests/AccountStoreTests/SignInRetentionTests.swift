import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Retention of sign-ins, refresh tokens and names")
struct SignInRetentionTests {
    private let name = Settlement.Name(given: "Maria", family: "Ruiz")

    @Test("Sign-ins go after the retention, settled or not, and a code that was not traded is erased before.")
    func retention() async throws {
        try await Store.with { store in
            let code = RefreshState.pending(sealedCode: [1], due: .at(1))
            try await store.signInWhole("old", of: "o", refresh: .stored)
            _ = try await store.reserve(.sample("left"))
            try await store.signInWhole("code", of: "q", refresh: code)
            try await store.signInWhole("fresh code", of: "r", at: .at(601), refresh: code)
            // The first one 31 days before, the others 29.
            try await store.run(
                """
                UPDATE siwa.sign_ins AS s
                SET received_at = to_timestamp(\(Store.now.wholeSeconds)) - interval '29 days'
                    - CASE WHEN s.refresh = 'stored' THEN interval '2 days' ELSE interval '0' END
                """
            )
            let effects = try await store.maintain(.signIns, now: .at(601))
            #expect((effects.signInsDeleted, effects.codesErased) == (1, 1))
            let rows = try await store.texts(
                "SELECT coalesce(refresh, 'left') FROM siwa.sign_ins ORDER BY sign_in_id"
            )
            #expect(rows == ["left", "lost", "pending"])
            #expect(try await store.count("apple_tokens") == 1)
            let effects1 = try await store.maintain(.signIns, now: .at(3 * 86_400))
            #expect(effects1.signInsDeleted == 3)
        }
    }

    @Test("More sign-ins than one transaction deletes are deleted in several.")
    func manySignIns() async throws {
        try await Store.with { store in
            try await store.run(
                """
                INSERT INTO siwa.sign_ins (presented_digest, client_id, app_id, flow, caller, received_at)
                SELECT sha256(n::text::bytea), 'c', 'c', 'native', '', '2020-01-01' FROM generate_series(1, 2500) AS n
                """
            )
            let effects2 = try await store.maintain(.signIns)
            #expect(effects2.signInsDeleted == 2_500)
        }
    }

    @Test(
        "Tokens and names from before a revocation are deleted, and tokens of deleted accounts; the others stay, on many pages."
    )
    func tokens() async throws {
        try await Store.with { store in
            try await store.run(
                """
                INSERT INTO siwa.accounts (team_id, sub, deleted_at)
                SELECT 'AAAAAAAAAA', n, CASE WHEN n % 10 = 0 THEN now() END FROM generate_series(1, 3000) AS n;
                INSERT INTO siwa.consents (account_id, app_id, authorized_at, revoked_at)
                SELECT
                    account_id, 'com.example.one', '2026-01-01',
                    CASE sub::integer % 10
                        WHEN 1 THEN '2026-01-01'::timestamptz WHEN 2 THEN '2025-12-31' WHEN 3 THEN '2026-01-02' END
                FROM siwa.accounts;
                ALTER TABLE siwa.apple_tokens ALTER COLUMN sealed SET STORAGE PLAIN;
                INSERT INTO siwa.apple_tokens (account_id, client_id, app_id, obtained_at, sealed, key_name, due_at)
                SELECT account_id, 'c', 'com.example.one', '2026-01-01', repeat('x', 3000)::bytea, 'k', now()
                FROM siwa.accounts;
                INSERT INTO siwa.kept_names (account_id, app_id, given, captured_at)
                SELECT account_id, 'com.example.one', 'n', '2026-01-01' FROM siwa.accounts;
                """
            )
            let effects = try await store.maintain(.tokens)
            // Each tenth: deleted, revoked at the same time, revoked later.
            #expect((effects.refreshTokensDeleted, effects.namesDeleted) == (900, 600))
            #expect(try await store.count("apple_tokens") == 2_100)
            // The names of deleted accounts are erased with the account.
            #expect(try await store.count("kept_names") == 2_400)
            let effects3 = try await store.maintain(.tokens)
            #expect(effects3 == MaintenanceEffects())
        }
    }

    @Test("A token that a sign-in replaces at the same time stays, as does one that another transaction has locked.")
    func lockedToken() async throws {
        try await Store.with { store in
            try await store.signInWhole("a", name: name, refresh: .stored)
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(1), id: "r"))
            let id = try #require(try await store.reserve(.sample("b", at: .at(2))).signInID)
            let during = try await store.database.withOpenTransaction { session throws(PostgresError) in
                _ = try Store.settle(.sample(id, at: .at(2), refresh: .stored), in: session)
            } _: {
                try await store.maintain(.tokens)
            }
            #expect(during == MaintenanceEffects())
            let effects4 = try await store.maintain(.tokens)
            #expect(effects4 == MaintenanceEffects())
            #expect(try await store.count("apple_tokens") == 1)
        }
    }

    @Test("The erasure of an account takes its names, tokens and devices, and nothing of other people.")
    func erasure() async throws {
        try await Store.with { store in
            let device = SignInDevice(platform: "ios", model: "iPhone17,2", label: nil)
            for sub in ["p", "q"] {
                try await store.signInWhole(sub, of: sub, name: name, refresh: .stored, device: device)
                try await store.signInWhole("2\(sub)", of: sub, at: .at(1), client: "com.example.two", device: device)
            }
            try await store.record(.sample("account-deleted", sub: "p", at: .at(2), id: "d"))
            let devices = """
                SELECT a.sub FROM siwa.sign_ins AS s JOIN siwa.accounts AS a USING (account_id)
                WHERE s.device IS NOT NULL ORDER BY 1
                """
            let later = Store.now + .days(31)
            // A sign-in that another transaction has locked keeps its device until the next time.
            try await store.database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(
                    script: "SELECT FROM siwa.sign_ins WHERE client_id = 'com.example.two' FOR UPDATE"
                )
            } _: {
                let effects5 = try await store.maintain(.erasure, now: later)
                #expect(effects5.accountsErased == 1)
            }
            #expect(try await store.texts(devices) == ["p", "q", "q"])
            try await store.maintain(.erasure, now: later)
            #expect(try await store.texts(devices) == ["q", "q"])
            for table in ["kept_names", "apple_tokens"] {
                let people = "SELECT a.sub FROM siwa.\(table) AS t JOIN siwa.accounts AS a USING (account_id)"
                #expect(try await store.texts(people) == ["q"], "\(table)")
            }
            #expect(try await store.reserve(.sample("x", of: "p", at: .at(9))) == .refused(.accountDeleted))
        }
    }

    @Test("Both tasks end without an effect in a database without sign-ins.")
    func empty() async throws {
        try await Store.with { store in
            let effects6 = try await store.maintain(.signIns)
            #expect(effects6 == MaintenanceEffects())
            let effects7 = try await store.maintain(.tokens)
            #expect(effects7 == MaintenanceEffects())
        }
    }
}
