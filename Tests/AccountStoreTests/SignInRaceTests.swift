import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Sign-ins and notifications in both orders")
struct SignInRaceTests {
    private let name = Settlement.Name(given: "Maria", family: nil)

    /// Records a notification, and again after a serialization failure.
    private func record(_ notification: ReceivedNotification, _ store: Store) async throws -> RecordedNotification {
        while true {
            do throws(PostgresError) {
                return try await store.connection.withSession { session throws(PostgresError) in
                    try Notifications.record([notification], source: .endpoint, in: session)[0]
                }
            } catch {
                guard error.sqlState == .serializationFailure else { throw error }
            }
        }
    }

    /// Nothing of a sign-in of this person is in the database.
    private func expectNothing(_ store: Store) async throws {
        for table in ["sign_ins", "account_sessions", "apple_tokens", "kept_names"] {
            #expect(try await store.count(table) == 0, "\(table)")
        }
        let authorized = "SELECT 1::text FROM siwa.consents WHERE authorized_at IS NOT NULL"
        #expect(try await store.texts(authorized).isEmpty)
    }

    @Test(
        "An older revocation ends nothing, whether it arrives before or after the sign-in.",
        arguments: [true, false]
    )
    func olderRevocation(comesFirst: Bool) async throws {
        try await Store.with { store in
            let revocation = ReceivedNotification.sample("consent-revoked", sub: "p", at: .at(-1), id: "r")
            if comesFirst { #expect(try await store.record(revocation) == [.applied]) }
            let answer = try await store.signInWhole("a", name: name, refresh: .stored, session: "s")
            #expect(answer?.session?.isLive == true)
            if !comesFirst { #expect(try await store.record(revocation) == [.superseded]) }
            #expect(try await store.session("s")?.isLive == true)
            #expect(try await store.state("p")?.state == "authorized")
            try await store.maintain(.tokens)
            #expect(try await store.count("apple_tokens") == 1)
            #expect(try await store.texts("SELECT given FROM siwa.account_names") == ["Maria"])
        }
    }

    @Test(
        "A token from before a revocation opens nothing after it, and its session ends by it.",
        arguments: [true, false]
    )
    func laterRevocation(comesFirst: Bool) async throws {
        try await Store.with { store in
            let revocation = ReceivedNotification.sample("consent-revoked", sub: "p", at: .at(1), id: "r")
            if comesFirst {
                try await store.record(revocation)
                #expect(try await store.reserve(.sample("a", session: "s")) == .refused(.consentRevoked))
                try await expectNothing(store)
            } else {
                try await store.signInWhole("a", name: name, refresh: .stored, session: "s")
                #expect(try await record(revocation, store).sessionsEnded == 1)
                #expect(try await store.session("s")?.endReason == "consent-revoked")
                #expect(try await store.texts("SELECT given FROM siwa.account_names").isEmpty)
                try await store.maintain(.tokens)
                #expect(try await store.count("apple_tokens") == 0)
                #expect(try await store.count("kept_names") == 0)
            }
            #expect(try await store.state("p")?.state == "revoked")
        }
    }

    @Test(
        "A deletion ends the session and refuses every later token, whichever came first and whichever is older.",
        arguments: [true, false],
        [-1, 1]
    )
    func deletion(comesFirst: Bool, second: Int) async throws {
        try await Store.with { store in
            let deletion = ReceivedNotification.sample("account-deleted", sub: "p", at: .at(second), id: "d")
            if comesFirst {
                #expect(try await store.record(deletion) == [.applied])
                #expect(try await store.reserve(.sample("a", session: "s")) == .refused(.accountDeleted))
                try await expectNothing(store)
            } else {
                try await store.signInWhole("a", name: name, refresh: .stored, session: "s")
                #expect(try await record(deletion, store).sessionsEnded == 1)
                #expect(try await store.session("s")?.endReason == "account-deleted")
                #expect(try await store.texts("SELECT given FROM siwa.account_names").isEmpty)
                try await store.maintain(.tokens)
                #expect(try await store.count("apple_tokens") == 0)
            }
            #expect(try await store.reserve(.sample("b", at: .at(9), session: "t")) == .refused(.accountDeleted))
            #expect(try await store.state("p")?.state == "deleted")
        }
    }

    @Test(
        "A revocation or deletion between reservation and settlement is seen under the lock: nothing is stored.",
        arguments: [("consent-revoked", SignInConflict.consentRevoked), ("account-deleted", .accountDeleted)]
    )
    func betweenReserveAndSettle(type: String, conflict: SignInConflict) async throws {
        for isKnown in [true, false] {
            try await Store.with { store in
                if isKnown { try await store.record(.sample("email-enabled", sub: "p", at: .at(-9), id: "e")) }
                let id = try #require(try await store.reserve(.sample("a", code: "c", session: "s")).signInID)
                let settlement = Settlement.sample(id, name: name, refresh: .stored, session: "s")
                // Open while the settlement begins, and committed before it gets the lock.
                let notification = ReceivedNotification.sample(type, sub: "p", at: .at(0), id: "n")
                let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: Notifications.writerSettings)
                    _ = try Notifications.record([notification], source: .endpoint, in: session)
                } _: {
                    let attempt = Task { try await store.settle(settlement) }
                    try await store.untilAnotherWaits()
                    return attempt
                }
                #expect(try await attempt.value == .refused(conflict))
                try await expectNothing(store)
                #expect(try await store.reserve(.sample("a", code: "c", session: "s")) == .refused(conflict))
            }
        }
    }

    @Test(
        "A revocation or deletion that meets a settlement waits for it, and then ends its session.",
        arguments: ["consent-revoked", "account-deleted"]
    )
    func whileSettling(type: String) async throws {
        for isKnown in [true, false] {
            try await Store.with { store in
                if isKnown { try await store.signInWhole("first", at: .at(-9)) }
                let id = try #require(try await store.reserve(.sample("a", session: "s")).signInID)
                let settlement = Settlement.sample(id, name: name, refresh: .stored, session: "s")
                let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                    guard case .settled = try Store.settle(settlement, in: session) else {
                        throw PostgresError(.usage, "refused")
                    }
                } _: {
                    let attempt = Task { try await record(.sample(type, sub: "p", at: .at(0), id: "n"), store) }
                    try await store.untilAnotherWaits()
                    return attempt
                }
                let recorded = try await attempt.value
                #expect(recorded.outcome == .applied)
                // A deletion that waited for the account does not see the session that was opened while it waited, and does not
                // count it.
                if type == "consent-revoked" || !isKnown { #expect(recorded.sessionsEnded == 1) }
                #expect(
                    try await store.session("s")?.endReason == (type == "consent-revoked" ? type : "account-deleted")
                )
                #expect(try await store.texts("SELECT session_id FROM siwa.live_sessions").isEmpty)
                try await store.maintain(.tokens)
                #expect(try await store.count("apple_tokens") == 0)
            }
        }
    }

    @Test(
        "Two sign-ins of a person at the same time, in both orders, end in the registers of the later one.",
        arguments: [true, false]
    )
    func twoSignIns(laterFirst: Bool) async throws {
        try await Store.with { store in
            var settlements: [Settlement] = []
            for (token, second) in [("a", 1), ("b", 2)] {
                let id = try #require(try await store.reserve(.sample(token, at: .at(second), session: token)).signInID)
                settlements.append(
                    .sample(
                        id,
                        at: .at(second),
                        name: .init(given: token, family: nil),
                        refresh: .stored,
                        session: token
                    )
                )
            }
            if laterFirst { settlements.reverse() }
            let (first, second) = (settlements[0], settlements[1])
            let attempt = try await store.database.withOpenTransaction { session throws(PostgresError) in
                _ = try Store.settle(first, in: session)
            } _: {
                let attempt = Task { try await store.settle(second) }
                try await store.untilAnotherWaits()
                return attempt
            }
            #expect(try await attempt.value.answer?.session?.isLive == true)
            #expect(try await store.state("p")?.authorizedAt == .at(2))
            #expect(try await store.texts("SELECT given FROM siwa.account_names") == ["b"])
            let obtained = "SELECT extract(epoch FROM obtained_at)::bigint::text FROM siwa.apple_tokens"
            #expect(try await store.texts(obtained) == [String(Store.now.wholeSeconds + 2)])
            #expect(try await store.texts("SELECT session_id FROM siwa.live_sessions ORDER BY 1") == ["a", "b"])
        }
    }
}
