import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@testable import AccountStore
@testable import AppleTokens

@Suite("Settlements of sign-ins")
struct SignInSettlementTests {
    private let name = Settlement.Name(given: "Maria", family: "Ruiz")

    @Test(
        "A settlement records the sign-in, opens the session, keeps the name and the token, and answers with all of it."
    )
    func settles() async throws {
        try await Store.with { store in
            let id = try #require(try await store.reserve(.sample("a", code: "c", session: "s")).signInID)
            var settlement = Settlement.sample(id, name: name, refresh: .stored, session: "s")
            settlement.email = VerifiedIdentity.Email(address: "x@privaterelay.appleid.com", isPrivate: true)
            settlement.realUserStatus = "likely-real"
            let answer = try #require(try await store.settle(settlement).answer)
            #expect(answer.signInID == id)
            #expect((answer.client, answer.app) == (ClientID("com.example.one"), AppID("com.example.one")))
            #expect((answer.team, answer.subject) == (TeamID("AAAAAAAAAA"), Subject("p")))
            #expect((answer.state, answer.isNewAccount, answer.signedInAt) == ("authorized", true, .at(0)))
            #expect(answer.email?.address == "x@privaterelay.appleid.com")
            #expect(answer.email?.isPrivate == true && answer.email?.isDeliverable == true)
            #expect(answer.name == SettledSignIn.Name(given: "Maria", family: "Ruiz", capturedAt: .at(0)))
            #expect((answer.realUserStatus, answer.refresh, answer.refreshError) == ("likely-real", .stored, nil))
            #expect(
                answer.session == SettledSignIn.Session(id: "s", isLive: true, createdAt: .at(0), expiresAt: nil)
            )
            #expect(try await store.state("p")?.authorizedAt == .at(0))
            #expect(try await store.session("s")?.signedInAt == .at(0))
            // A commit whose outcome is unknown is tried again.
            #expect(try await store.settle(settlement) == .settled(answer))
            #expect(try await store.reserve(.sample("a", code: "c", session: "s")) == .repeated(answer))
            let tokens = try await store.texts(
                """
                SELECT concat_ws(' ', client_id, app_id, key_name, due_at - obtained_at, refusals, state)
                FROM siwa.refresh_tokens
                """
            )
            #expect(tokens == ["com.example.one com.example.one key 1 day 01:00:00 0 valid"])
        }
    }

    @Test("The account is new at the first sign-in to an app group, and only then, also for a person known before.")
    func newAccount() async throws {
        try await Store.with { store in
            try await store.record(.sample("email-enabled", sub: "p", at: .at(-10), id: "e", email: "a@b"))
            #expect(try await store.signInWhole("a")?.isNewAccount == true)
            #expect(try await store.signInWhole("b", at: .at(1))?.isNewAccount == false)
            #expect(try await store.signInWhole("c", at: .at(2), client: "com.example.web")?.isNewAccount == false)
            #expect(try await store.signInWhole("d", at: .at(3), client: "com.example.two")?.isNewAccount == true)
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(4), id: "r"))
            #expect(try await store.signInWhole("e", at: .at(5))?.isNewAccount == false)
        }
    }

    @Test("Of two first sign-ins of a person at the same time, one is the first.")
    func twoFirst() async throws {
        try await Store.with { store in
            let one = try #require(try await store.reserve(.sample("a", session: "a")).signInID)
            let two = try #require(try await store.reserve(.sample("b", session: "b")).signInID)
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                guard case .settled(let answer) = try SignIns.settle(.sample(one, session: "a"), in: session),
                    answer.isNewAccount
                else { throw PostgresError(.usage, "not the first") }
            } _: {
                let attempt = Task { try await store.settle(.sample(two, session: "b")) }
                try await store.untilAnotherWaits()
                return attempt
            }
            #expect(try await attempt.value.answer?.isNewAccount == false)
            #expect(try await store.texts("SELECT session_id FROM siwa.live_sessions ORDER BY 1") == ["a", "b"])
        }
    }

    @Test(
        "A session id that another sign-in took since the reservation is taken, and nothing of the sign-in is stored."
    )
    func sessionTaken() async throws {
        try await Store.with { store in
            for sub in ["p", "q"] {
                let id = try #require(
                    try await store.reserve(.sample("a", of: sub, at: .at(1), session: "s\(sub)")).signInID
                )
                try await store.signIn("p", at: .at(0))
                try await store.openSession("s\(sub)", of: "p", at: .at(0))
                let settlement = Settlement.sample(
                    id,
                    of: sub,
                    at: .at(1),
                    name: name,
                    refresh: .stored,
                    session: "s\(sub)"
                )
                #expect(try await store.settle(settlement) == .refused(.sessionTaken))
                for table in ["sign_ins", "apple_tokens", "kept_names"] {
                    #expect(try await store.count(table) == 0, "\(table)")
                }
            }
            #expect(try await store.count("accounts") == 1)
            #expect(try await store.state("p")?.authorizedAt == .at(0))
        }
    }

    @Test(
        "What became of the refresh token follows from the exchange, from an older token, and from an earlier attempt."
    )
    func refreshOutcomes() async throws {
        try await Store.with { store in
            func outcome(_ token: String, _ state: RefreshState, at second: Int) async throws -> (
                RefreshOutcome?, String?
            ) {
                let answer = try await store.signInWhole(token, at: .at(second), refresh: state)
                return (answer?.refresh, answer?.refreshError)
            }
            #expect(try await outcome("a", .none, at: 0) == (.some(.none), nil))
            #expect(try await outcome("b", .refused("invalid_grant"), at: 1) == (.refused, "invalid_grant"))
            #expect(try await outcome("c", .lost, at: 2) == (.lost, nil))
            let due = WallTime.at(100)
            #expect(try await outcome("d", .pending(sealedCode: [1], due: due), at: 3) == (.pending, nil))
            #expect(try await outcome("e", .stored, at: 4) == (.stored, nil))
            #expect(try await outcome("f", .none, at: 5) == (.kept, nil))
            #expect(try await outcome("g", .refused("invalid_grant"), at: 6) == (.kept, nil))
            #expect(try await outcome("h", .refused("invalid_client"), at: 7) == (.refused, "invalid_client"))
            try await store.run("UPDATE siwa.apple_tokens SET state = 'unreadable'")
            #expect(try await outcome("i", .none, at: 8) == (.some(.none), nil))
            // Killed between Apple's answer and the commit.
            _ = try await store.reserve(.sample("j", of: "q", code: "c"))
            try await store.endLeases()
            let id = try #require(try await store.reserve(.sample("j", of: "q", code: "c")).signInID)
            let settled = try await store.settle(.sample(id, of: "q", refresh: .refused("invalid_grant")))
            #expect(settled.answer?.refresh == .lost)
        }
    }

    @Test("The token of the latest sign-in wins, in whichever order they are settled, for each client id apart.")
    func latestToken() async throws {
        try await Store.with { store in
            func signIn(_ token: String, at second: Int, client: String = "com.example.one") async throws {
                let new = NewSignIn.sample(token, at: .at(second), client: client)
                let id = try #require(try await store.reserve(new).signInID)
                _ = try await store.settle(
                    .sample(id, at: .at(second), refresh: .stored),
                    token: SealedToken(sealed: Array(token.utf8), keyName: token)
                )
            }
            try await signIn("two", at: 2)
            try await store.run("UPDATE siwa.apple_tokens SET refusals = 1, state = 'refused', asked_at = now()")
            try await signIn("one", at: 1)
            let tokens = """
                SELECT concat_ws(' ', client_id, convert_from(sealed, 'UTF8'), key_name, state, refusals, asked_at)
                FROM siwa.apple_tokens ORDER BY 1
                """
            #expect(try await store.texts(tokens)[0].hasPrefix("com.example.one two two refused 1 "))
            try await signIn("three", at: 3)
            try await signIn("web", at: 1, client: "com.example.web")
            #expect(
                try await store.texts(tokens) == [
                    "com.example.one three three valid 0", "com.example.web web web valid 0",
                ]
            )
            #expect(
                try await store.texts("SELECT app_id FROM siwa.apple_tokens") == ["com.example.one", "com.example.one"]
            )
        }
    }

    @Test("Names come back at every sign-in to their app group; a later one replaces them, and an empty one doesn't.")
    func names() async throws {
        try await Store.with { store in
            func signIn(_ token: String, at second: Int, _ name: Settlement.Name?, client: String = "com.example.one")
                async throws -> SettledSignIn.Name?
            {
                let answer = try await store.signInWhole(token, at: .at(second), client: client, name: name)
                return answer?.name
            }
            let maria = SettledSignIn.Name(given: "Maria", family: "Ruiz", capturedAt: .at(0))
            #expect(try await signIn("a", at: 0, name) == maria)
            #expect(try await signIn("b", at: 1, nil, client: "com.example.web") == maria)
            #expect(try await signIn("c", at: 2, .init(given: "", family: nil)) == maria)
            #expect(try await signIn("d", at: 3, nil, client: "com.example.two") == nil)
            #expect(try await signIn("e", at: 4, .init(given: "Mia", family: nil))?.given == "Mia")
            // An older one that comes late.
            #expect(try await signIn("f", at: 3, name)?.given == "Mia")
            let id = try #require(try await store.reserve(.sample("g", of: "q")).signInID)
            let answer = try await store.settle(.sample(id, of: "q", name: name, keepsNames: false)).answer
            #expect(answer != nil && answer?.name == nil)
            let kept = "SELECT concat_ws(' ', sub, app_id, given, family) FROM siwa.account_names"
            #expect(try await store.texts(kept) == ["p com.example.one Mia"])
        }
    }

    @Test("After a revocation, an earlier name and token are gone at the next sign-in, before they are deleted.")
    func afterRevocation() async throws {
        try await Store.with { store in
            try await store.signInWhole("a", name: name, refresh: .stored)
            try await store.signInWhole("b", client: "com.example.two", name: name, refresh: .stored)
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(1), id: "r"))
            let names = "SELECT app_id FROM siwa.account_names"
            #expect(try await store.texts(names) == ["com.example.two"])
            let answer = try await store.signInWhole("c", at: .at(2))
            #expect((answer?.name, answer?.refresh) == (nil, .some(.none)))
            #expect(try await store.texts("SELECT app_id FROM siwa.apple_tokens") == ["com.example.two"])
            #expect(try await store.texts("SELECT app_id FROM siwa.kept_names") == ["com.example.two"])
        }
    }

    @Test("A session that expires before it opens is refused as by SQL, and one that has expired since is not live.")
    func expiry() async throws {
        try await Store.with { store in
            let id = try #require(try await store.reserve(.sample("a", session: "s")).signInID)
            var settlement = Settlement.sample(id)
            settlement.session = .init(id: "s", createdAt: .at(0), expiresAt: .at(-1))
            let error = await #expect(throws: PostgresError.self) { try await store.settle(settlement) }
            #expect(error?.sqlState?.rawValue == "SW005")
            settlement.session = .init(id: "s", createdAt: .at(0), expiresAt: .at(1))
            let answer = try await store.settle(settlement).answer
            #expect(answer?.session == .init(id: "s", isLive: false, createdAt: .at(0), expiresAt: .at(1)))
        }
    }
}
