import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Codes that are traded in the background")
struct BackgroundExchangeTests {
    /// Refresh outcome, error and whether a code is there, by sign-in.
    private static let rows = """
        SELECT concat_ws(' ', refresh, refresh_error, CASE WHEN code_sealed IS NOT NULL THEN 'code' END)
        FROM siwa.sign_ins ORDER BY sign_in_id
        """

    @Test("Due codes are claimed for a minute, the longest due first, each by one daemon; the others wait.")
    func claims() async throws {
        try await Store.with { store in
            let late = try await store.pendingExchange("late", due: .at(3))
            let early = try await store.pendingExchange("early", of: "q", at: .at(2), due: .at(1))
            _ = try await store.pendingExchange("future", of: "r", due: WallTime.now() + .seconds(60))
            let first = try await store.claimExchanges(limit: 1)
            #expect(first.map(\.signInID) == [early])
            #expect(first.first?.subject == Subject("q") && first.first?.signedInAt == .at(2))
            #expect(first.first?.sealedCode == Array("early".utf8) && first.first?.attempt == 1)
            #expect(try await store.claimExchanges().map(\.signInID) == [late])
            #expect(try await store.claimExchanges().isEmpty)
            try await store.endLeases()
            #expect(try await store.claimExchanges().map(\.attempt) == [2, 2])
        }
    }

    @Test("A claim reads only the codes that are due.")
    func readsDue() async throws {
        try await Store.with { store in
            let due = try await store.pendingExchange("due")
            try await store.run(
                """
                INSERT INTO siwa.sign_ins (
                    presented_digest, client_id, app_id, flow, caller, settled_at, signed_in_at, account_id, new_account, refresh,
                    code_sealed, code_due_at
                )
                SELECT
                    sha256(n::text::bytea), client_id, app_id, flow, caller, settled_at, signed_in_at, account_id, new_account,
                    refresh, code_sealed, now() + interval '1 hour'
                FROM siwa.sign_ins, generate_series(1, 20000) AS n
                """
            )
            let (claimed, read) = try await store.connection.transaction { session throws(PostgresError) in
                let claimed = try SignIns.pendingExchanges(of: [ClientID("com.example.one")], limit: 10, in: session)
                let read = try session.execute(
                    once: "SELECT pg_stat_get_xact_tuples_returned('siwa.sign_ins_code_due_at'::regclass)"
                )
                return (claimed.map(\.signInID), try read.int64(0, 0))
            }
            #expect(claimed == [due])
            #expect(read < 100)
        }
    }

    @Test("Codes are counted as waiting for as long as Apple accepts them.")
    func waiting() async throws {
        try await Store.with { store in
            let now = WallTime.now()
            _ = try await store.pendingExchange("old", at: now - .seconds(330), due: now)
            _ = try await store.pendingExchange("waiting", of: "q", at: now - .seconds(240), due: now)
            try await store.signInWhole("traded", of: "r", at: now, refresh: .stored)
            let count = try await store.connection.withSession { session throws(PostgresError) in
                try SignIns.waitingCodes(in: session)
            }
            #expect(count == 1)
        }
    }

    @Test("A daemon leaves the codes of clients that it can't trade to others, until Apple accepts them no longer.")
    func foreignClients() async throws {
        try await Store.with { store in
            let now = WallTime.now()
            _ = try await store.pendingExchange("fresh", at: now - .seconds(60), due: now - .seconds(1))
            #expect(try await store.claimExchanges(of: []).isEmpty)
            #expect(try await store.claimExchanges(of: [ClientID("com.example.two")]).isEmpty)
            #expect(try await store.texts("SELECT code_attempts::text FROM siwa.sign_ins") == ["0"])
            let old = try await store.pendingExchange("old", of: "q", at: now - .seconds(330), due: now - .seconds(1))
            #expect(try await store.claimExchanges(of: []).map(\.signInID) == [old])
            #expect(try await store.claimExchanges().map(\.attempt) == [1])
            // From a time when the clock was ahead.
            try await store.run("UPDATE siwa.sign_ins SET lease_until = now() + interval '1 d'")
            #expect(try await store.claimExchanges().count == 2)
            // As a daemon of an earlier version does, for all clients.
            try await store.run("UPDATE siwa.sign_ins SET lease_until = NULL")
            #expect(try await store.texts("SELECT count(*)::text FROM siwa.claim_exchanges(10)") == ["2"])
        }
    }

    @Test("Two claims at the same time get different codes.")
    func skipsLocked() async throws {
        try await Store.with { store in
            let ids = [try await store.pendingExchange("a"), try await store.pendingExchange("b", due: .at(2))]
            let other = try await store.database.withOpenTransaction { session throws(PostgresError) in
                guard
                    try SignIns.pendingExchanges(of: [ClientID("com.example.one")], limit: 1, in: session).map(
                        \.signInID
                    ) == [ids[0]]
                else {
                    throw PostgresError(.usage, "not claimed")
                }
            } _: {
                try await store.claimExchanges()
            }
            #expect(other.map(\.signInID) == [ids[1]])
        }
    }

    @Test(
        "A token is stored, a failed attempt is repeated, a code is given up with its reason, and codes are erased."
    )
    func outcomes() async throws {
        try await Store.with { store in
            var ids: [Int64] = []
            for token in ["a", "b", "c", "d", "e"] {
                ids.append(try await store.pendingExchange(token, of: token))
            }
            #expect(try await store.claimExchanges().count == 5)
            #expect(try await store.finishExchange(ids[0], .stored(Store.token)) == .stored)
            #expect(try await store.finishExchange(ids[1], .again(.at(9))) == .pending)
            #expect(try await store.finishExchange(ids[2], .lost) == .lost)
            #expect(try await store.finishExchange(ids[3], .refused("invalid_grant")) == .refused)
            #expect(try await store.finishExchange(ids[4], .refused("invalid_client")) == .refused)
            #expect(try await store.finishExchange(-1, .lost) == nil)
            #expect(
                try await store.texts(Self.rows) == [
                    "stored", "pending code", "lost", "refused invalid_grant", "refused invalid_client",
                ]
            )
            #expect(try await store.claimExchanges().map(\.signInID) == [ids[1]])
            // Its first attempt may have used the code.
            #expect(try await store.finishExchange(ids[1], .refused("invalid_grant")) == .lost)
            #expect(try await store.count("apple_tokens") == 1)
        }
    }

    @Test("A process that was too slow changes nothing, but the token that it got is kept.")
    func tooSlow() async throws {
        try await Store.with { store in
            let id = try await store.pendingExchange("a")
            _ = try await store.claimExchanges()
            try await store.endLeases()
            _ = try await store.claimExchanges()
            #expect(try await store.finishExchange(id, .lost) == .lost)
            #expect(try await store.finishExchange(id, .again(.at(5))) == .lost)
            #expect(try await store.texts(Self.rows) == ["lost"])
            #expect(try await store.finishExchange(id, .stored(Store.token)) == .stored)
            #expect(try await store.finishExchange(id, .refused("invalid_grant")) == .stored)
            #expect(try await store.texts(Self.rows) == ["stored"])
        }
    }

    @Test(
        "A token that comes after the revocation of its sign-in is not kept, nor one of a deleted account.",
        arguments: ["consent-revoked", "account-deleted"]
    )
    func revokedSince(type: String) async throws {
        try await Store.with { store in
            let id = try await store.pendingExchange("a")
            try await store.record(.sample(type, sub: "p", at: .at(1), id: "n"))
            #expect(try await store.finishExchange(id, .stored(Store.token)) == .lost)
            #expect(try await store.texts(Self.rows) == ["lost"])
            #expect(try await store.count("apple_tokens") == 0)
        }
    }

    @Test("A refused code counts as kept if a sign-in has stored a token since.")
    func kept() async throws {
        try await Store.with { store in
            let id = try await store.pendingExchange("a")
            try await store.signInWhole("b", at: .at(1), refresh: .stored)
            _ = try await store.claimExchanges()
            #expect(try await store.finishExchange(id, .refused("invalid_grant")) == .kept)
        }
    }

    @Test(
        "A token that comes in the background does not replace the one of a later sign-in, in both orders.",
        arguments: [true, false]
    )
    func laterSignIn(comesFirst: Bool) async throws {
        try await Store.with { store in
            let older = SealedToken(sealed: Array("older".utf8), keyName: "key")
            let id = try await store.pendingExchange("a")
            let later = try #require(try await store.reserve(.sample("b", at: .at(1), session: "s")).signInID)
            let settlement = Settlement.sample(later, at: .at(1), refresh: .stored, session: "s")
            // The second one waits for the first one's transaction.
            if comesFirst {
                let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                    _ = try Store.settle(settlement, in: session)
                } _: {
                    let attempt = Task { try await store.finishExchange(id, .stored(older)) }
                    try await store.untilAnotherWaits()
                    return attempt
                }
                #expect(try await attempt.value == .stored)
            } else {
                let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                    try SignIns.finishExchange(id, .stored(older), in: session)
                } _: {
                    let attempt = Task { try await store.settle(settlement) }
                    try await store.untilAnotherWaits()
                    return attempt
                }
                #expect(try await attempt.value.answer?.session?.isLive == true)
            }
            let tokens = "SELECT convert_from(sealed, 'UTF8') FROM siwa.apple_tokens"
            #expect(try await store.texts(tokens) == ["sealed"])
            let obtained = "SELECT extract(epoch FROM obtained_at)::bigint::text FROM siwa.apple_tokens"
            #expect(try await store.texts(obtained) == [String(WallTime.at(1).wholeSeconds)])
        }
    }

    @Test(
        "A revocation or deletion that meets the storing of a token has its effect, in both orders.",
        arguments: ["consent-revoked", "account-deleted"],
        [true, false]
    )
    func meetsRevocation(type: String, comesFirst: Bool) async throws {
        try await Store.with { store in
            let id = try await store.pendingExchange("a")
            let notification = ReceivedNotification.sample(type, sub: "p", at: .at(1), id: "n")
            if comesFirst {
                let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: Notifications.writerSettings)
                    _ = try Notifications.record([notification], source: .endpoint, in: session)
                } _: {
                    let attempt = Task { try await store.finishExchange(id, .stored(Store.token)) }
                    try await store.untilAnotherWaits()
                    return attempt
                }
                #expect(try await attempt.value == .lost)
            } else {
                let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                    try SignIns.finishExchange(id, .stored(Store.token), in: session)
                } _: {
                    let attempt = Task { try await store.record(notification) }
                    try await store.untilAnotherWaits()
                    return attempt
                }
                #expect(try await attempt.value == [.applied])
                try await store.maintain(.tokens)
            }
            #expect(try await store.count("apple_tokens") == 0)
        }
    }
}
