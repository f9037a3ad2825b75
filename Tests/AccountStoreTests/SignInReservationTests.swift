import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Reservations of sign-ins")
struct SignInReservationTests {
    @Test("A reserved sign-in names no person, and only the process that reserved it works on it for 15 seconds.")
    func reserved() async throws {
        try await Store.with { store in
            let device = SignInDevice(platform: "ios", model: nil, label: "Maria's iPhone")
            let new = NewSignIn.sample("a", code: "c", session: "s", device: device)
            #expect(try await store.reserve(new).signInID != nil)
            let rows = try await store.texts(
                """
                SELECT concat_ws(
                    ' ', client_id, app_id, flow, caller, session_id, account_id, signed_in_at, settled_at, refresh, device,
                    lease_until - received_at BETWEEN '14.9 s' AND '15.1 s'
                )
                FROM siwa.sign_ins
                """
            )
            #expect(
                rows == [
                    #"com.example.one com.example.one native backend s {"label": "Maria's iPhone", "platform": "ios"} t"#
                ]
            )
            #expect(try await store.count("accounts") == 0)
            #expect(try await store.reserve(new) == .refused(.inProgress))
        }
    }

    @Test("A code alone is not reserved if its time is more than five minutes ahead of the database's clock.")
    func codeAhead() async throws {
        try await Store.with { store in
            func sample(ahead time: Duration) -> NewSignIn {
                var new = NewSignIn.sample("a", of: nil)
                new.issuedAt = WallTime.now() + time
                return new
            }
            let early = sample(ahead: .seconds(330))
            let together = try await store.reserveTogether([early])
            #expect(together == [nil])
            #expect(try await store.reserve(early) == .refused(.notYetValid))
            #expect(try await store.count("sign_ins") == 0)
            #expect(try await store.reserve(sample(ahead: .seconds(240))).signInID != nil)
        }
    }

    @Test("A settled sign-in is repeated for the same session only, with the same answer.")
    func repeatedForSession() async throws {
        try await Store.with { store in
            let first = try #require(try await store.signInWhole("a", session: "s"))
            let new = NewSignIn.sample("a", session: "s")
            #expect(try await store.reserve(new) == .repeated(first))
            var other = new
            other.sessionID = "t"
            #expect(try await store.reserve(other) == .refused(.tokenUsed))
            other.sessionID = nil
            #expect(try await store.reserve(other) == .refused(.tokenUsed))
            other.attempt = digest("attempt")
            #expect(try await store.reserve(other) == .refused(.tokenUsed))
            #expect(try await store.count("sign_ins") == 1)
        }
    }

    @Test("Without a session, a settled sign-in is repeated for the same idempotency key only.")
    func repeatedForAttempt() async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a", attempt: "one")
            let id = try #require(try await store.reserve(new).signInID)
            let first = try #require(try await store.settle(.sample(id)).answer)
            #expect(try await store.reserve(new) == .repeated(first))
            for attempt in ["two", nil] {
                #expect(try await store.reserve(.sample("a", attempt: attempt)) == .refused(.tokenUsed))
            }
            #expect(try await store.reserve(.sample("a", attempt: "one", session: "s")) == .refused(.tokenUsed))
        }
    }

    @Test("A token without session and idempotency key is used once, also while the first sign-in is under way.")
    func withoutBoth() async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a")
            let id = try #require(try await store.reserve(new).signInID)
            #expect(try await store.reserve(new) == .refused(.tokenUsed))
            #expect(try await store.reserve(.sample("a", session: "s")) == .refused(.tokenUsed))
            _ = try await store.settle(.sample(id))
            #expect(try await store.reserve(new) == .refused(.tokenUsed))
        }
    }

    @Test(
        "A token with another code, nonce or client id is used, whether the first sign-in is settled, under way or left.",
        arguments: ["settled", "reserved", "left"]
    )
    func otherCodeOrNonce(state: String) async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a", code: "c", session: "s")
            let id = try #require(try await store.reserve(new).signInID)
            if state == "settled" { _ = try await store.settle(.sample(id, session: "s")) }
            if state == "left" { try await store.endLeases() }
            var others = [new, new, new, new, new]
            others[0].codeDigest = digest("d")
            others[1].codeDigest = nil
            others[2].nonceDigest = digest("n")
            others[3].nonceDigest = nil
            others[4].client = ClientID("com.example.web")
            for other in others { #expect(try await store.reserve(other) == .refused(.tokenUsed)) }
        }
    }

    @Test("A nonce is used once for each client id, whatever became of the sign-in that has it.")
    func nonce() async throws {
        try await Store.with { store in
            let id = try #require(try await store.reserve(.sample("a", nonce: "n")).signInID)
            #expect(try await store.reserve(.sample("b", of: "q", nonce: "n")) == .refused(.nonceUsed))
            try await store.endLeases()
            #expect(try await store.reserve(.sample("b", nonce: "n")) == .refused(.nonceUsed))
            _ = try await store.settle(.sample(id))
            #expect(try await store.reserve(.sample("b", nonce: "n")) == .refused(.nonceUsed))
            #expect(try await store.reserve(.sample("b", nonce: "n", client: "com.example.two")).signInID != nil)
            var withoutNonce = NewSignIn.sample("c")
            withoutNonce.nonceDigest = nil
            #expect(try await store.reserve(withoutNonce).signInID != nil)
            withoutNonce.presentedDigest = digest("d")
            #expect(try await store.reserve(withoutNonce).signInID != nil)
        }
    }

    @Test("A sign-in that was left is taken over under another id, so that the first process can't settle it any more.")
    func takeover() async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a", session: "s")
            let slow = try #require(try await store.reserve(new).signInID)
            try await store.endLeases()
            let next = try #require(try await store.reserve(.sample("a", session: "t")).signInID)
            #expect(next != slow)
            #expect(try await store.settle(.sample(slow, session: "s")) == .refused(.inProgress))
            try await store.connection.withSession { session throws(PostgresError) in
                try SignIns.release(slow, in: session)
            }
            #expect(try await store.count("account_sessions") == 0)
            let answer = try await store.settle(.sample(next, session: "t")).answer
            #expect(answer?.session?.id == "t")
            #expect(try await store.reserve(new) == .refused(.tokenUsed))
        }
    }

    @Test("A released sign-in can be reserved again, and a settled one can't be released.")
    func release() async throws {
        try await Store.with { store in
            func release(_ id: Int64) async throws {
                try await store.connection.withSession { session throws(PostgresError) in
                    try SignIns.release(id, in: session)
                }
            }
            try await release(try #require(try await store.reserve(.sample("a")).signInID))
            #expect(try await store.count("sign_ins") == 0)
            let id = try #require(try await store.reserve(.sample("a", session: "s")).signInID)
            let first = try #require(try await store.settle(.sample(id, session: "s")).answer)
            try await release(id)
            #expect(try await store.reserve(.sample("a", session: "s")) == .repeated(first))
        }
    }

    @Test("A session id that anyone has is taken, of the same person and of an ended session too.")
    func sessionTaken() async throws {
        try await Store.with { store in
            try await store.signIn("p", at: .at(0))
            try await store.openSession("s", of: "p", at: .at(0))
            for sub in ["p", "q"] {
                #expect(try await store.reserve(.sample("a", of: sub, session: "s")) == .refused(.sessionTaken))
            }
            try await store.run("SELECT siwa.end_session('s')")
            #expect(try await store.reserve(.sample("a", session: "s")) == .refused(.sessionTaken))
            #expect(try await store.count("sign_ins") == 0)
            // A sign-in that was left can't take it either.
            _ = try #require(try await store.reserve(.sample("a", session: "t")).signInID)
            try await store.endLeases()
            #expect(try await store.reserve(.sample("a", session: "s")) == .refused(.sessionTaken))
        }
    }

    @Test(
        "A token from before a known revocation, or of a deleted account, is refused before the code, and leaves no row."
    )
    func refusedBefore() async throws {
        try await Store.with { store in
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(10), id: "r"))
            for time in [WallTime.at(9), .at(10)] {
                #expect(try await store.reserve(.sample("a", at: time)) == .refused(.consentRevoked))
            }
            #expect(try await store.count("sign_ins") == 0)
            let elsewhere = NewSignIn.sample("a", at: .at(9), client: "com.example.two")
            #expect(try await store.reserve(elsewhere).signInID != nil)
            #expect(try await store.reserve(.sample("b", at: .at(11))).signInID != nil)
            try await store.record(.sample("account-deleted", sub: "p", at: .at(20), id: "d"))
            #expect(try await store.reserve(.sample("c", at: .at(30))) == .refused(.accountDeleted))
            #expect(try await store.reserve(.sample("c", client: "com.example.none")) == .refused(.unknownClient))
            #expect(try await store.count("sign_ins") == 2)
        }
    }

    @Test("The repeat of a sign-in whose consent was revoked since is refused, also of one with a code only.")
    func repeatedAfterRevocation() async throws {
        try await Store.with { store in
            for (token, sub) in [("a", "p"), ("b", nil)] as [(String, String?)] {
                let new = NewSignIn.sample(token, of: sub, session: token)
                let id = try #require(try await store.reserve(new).signInID)
                #expect(try await store.settle(.sample(id, session: token)).answer != nil)
                #expect(try await store.reserve(new).answer != nil)
            }
            try await store.record(.sample("consent-revoked", sub: "p", at: .at(0), id: "r"))
            for (token, sub) in [("a", "p"), ("b", nil)] as [(String, String?)] {
                #expect(
                    try await store.reserve(.sample(token, of: sub, session: token)) == .refused(.consentRevoked)
                )
            }
            try await store.record(.sample("account-deleted", sub: "p", at: .at(1), id: "d"))
            #expect(try await store.reserve(.sample("b", of: nil, session: "b")) == .refused(.accountDeleted))
        }
    }

    @Test("Of two reservations of a token at the same time, on two connections, the second one waits and is refused.")
    func twoAtOnce() async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a", session: "s")
            let other = NewSignIn.sample("b", of: "q", nonce: "a")
            let attempts = try await store.database.withOpenTransaction { session throws(PostgresError) in
                guard case .reserved = try SignIns.reserve(new, in: session) else {
                    throw PostgresError(.usage, "not reserved")
                }
            } _: {
                let attempts = [new, other].map { new in
                    Task {
                        let connection = try await PostgresConnection.connect(store.database.settings)
                        let reservation = try await connection.withSession { session throws(PostgresError) in
                            try SignIns.reserve(new, in: session)
                        }
                        await connection.close()
                        return reservation
                    }
                }
                try await store.untilAnotherWaits()
                return attempts
            }
            #expect(try await attempts[0].value == .refused(.inProgress))
            #expect(try await attempts[1].value == .refused(.nonceUsed))
        }
    }

    @Test("A reservation that meets the same sign-in while it is being settled waits, and returns its answer.")
    func whileSettling() async throws {
        try await Store.with { store in
            let new = NewSignIn.sample("a", session: "s")
            let id = try #require(try await store.reserve(new).signInID)
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                _ = try SignIns.settle(.sample(id, session: "s"), in: session)
            } _: {
                let attempt = Task { try await store.reserve(new) }
                try await store.untilAnotherWaits()
                return attempt
            }
            #expect(try await attempt.value.answer?.session?.isLive == true)
        }
    }
}
