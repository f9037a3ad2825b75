import AppleTokens
import Basics
import SignIn
import Testing

@testable import SignInFlow

/// Notifications that are recorded before a sign-in, while Apple is asked for its tokens, and after it.
@Suite("Sign-ins and notifications about the same person", .timeLimit(.minutes(5)))
struct NotificationRaceTests {
    enum Moment: CaseIterable {
        case before, during, after
    }

    /// Signs in with a token that was issued two minutes ago, and records a notification at a moment of the sign-in.
    ///
    /// - Parameter age: of the event, in seconds.
    /// - Returns: the answer, or the reason of the refusal.
    private func signIn(
        _ flow: FlowFixture,
        _ type: String,
        age: Int,
        _ moment: Moment
    ) async throws -> (device: LocalApple.Device, result: Result<SignInAnswer, Problem>) {
        let device = try flow.apple.signIn(members: ",\"age\":120")
        let record: @Sendable () async throws -> Void = {
            try await flow.record(type, of: device.subject, at: .now() - .seconds(age))
        }
        if moment == .before { try await record() }
        if moment == .during { flow.apple.whileAsked(record) }
        let request = try flow.request(device, session: "s1")
        let result: Result<SignInAnswer, Problem>
        do throws(Problem) {
            result = .success(try await flow.service.signIn(request, by: nil))
        } catch {
            result = .failure(error)
        }
        if moment == .after { try await record() }
        return (device, result)
    }

    private func expectNothing(_ flow: FlowFixture) async throws {
        for table in ["sign_ins", "account_sessions", "apple_tokens", "kept_names"] {
            #expect(try await flow.texts("SELECT 1::text FROM siwa.\(table)").isEmpty, "\(table)")
        }
    }

    private static let endReasons = "SELECT end_reason FROM siwa.sessions"

    @Test("A revocation from before the token ends nothing, whenever it is recorded.", arguments: Moment.allCases)
    func olderRevocation(moment: Moment) async throws {
        try await FlowFixture.with { flow in
            let answer = try await signIn(flow, "consent-revoked", age: 180, moment).result.get()
            #expect(answer.account.state == "authorized" && answer.refreshToken == .stored)
            #expect(try await flow.service.session("s1", by: nil).isLive)
            #expect(try await flow.texts("SELECT state FROM siwa.apple_tokens") == ["valid"])
        }
    }

    @Test(
        "After a revocation, a token from before it opens nothing, its session ends, and the next token opens another.",
        arguments: Moment.allCases
    )
    func laterRevocation(moment: Moment) async throws {
        try await FlowFixture.with { flow in
            let (device, result) = try await signIn(flow, "consent-revoked", age: 60, moment)
            switch result {
            case .success:
                #expect(moment == .after)
                #expect(try await flow.texts(Self.endReasons) == ["consent-revoked"])
            case .failure(let problem):
                #expect(problem.reason == .consentRevoked && moment != .after)
                try await expectNothing(flow)
            }
            let requests = flow.apple.requests
            #expect(requests == (moment == .before ? 0 : 1))
            #expect(try await flow.refusal(flow.request(device, session: "s1")) == .consentRevoked)
            #expect(flow.apple.requests == requests)
            let next = try flow.apple.signIn(nonce: "nonce-two")
            let answer = try await flow.signIn(flow.request(next, nonce: "nonce-two", session: "s2"))
            #expect(answer.session?.isLive == true && answer.refreshToken == .stored)
            #expect(try await flow.texts("SELECT session_id FROM siwa.live_sessions") == ["s2"])
        }
    }

    @Test(
        "After the deletion of an account, nothing is opened for good, whichever is older, the token or the deletion.",
        arguments: Moment.allCases,
        [180, 60]
    )
    func deletion(moment: Moment, age: Int) async throws {
        try await FlowFixture.with { flow in
            let (_, result) = try await signIn(flow, "account-deleted", age: age, moment)
            switch result {
            case .success:
                #expect(moment == .after)
                #expect(try await flow.texts(Self.endReasons) == ["account-deleted"])
            case .failure(let problem):
                #expect(problem.reason == .accountDeleted && moment != .after)
                try await expectNothing(flow)
            }
            let requests = flow.apple.requests
            let next = try flow.apple.signIn(nonce: "nonce-two")
            #expect(
                try await flow.refusal(flow.request(next, nonce: "nonce-two", session: "s2")) == .accountDeleted
            )
            #expect(flow.apple.requests == requests)
            #expect(try await flow.texts("SELECT session_id FROM siwa.live_sessions").isEmpty)
        }
    }

    @Test("A code alone of a person who revoked the consent since is refused once Apple has named the person.")
    func codeOnly() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn(members: ",\"age\":120")
            try await flow.record("consent-revoked", of: device.subject, at: .now() - .seconds(60))
            let request = try flow.request(device, session: "s1", token: false)
            #expect(await flow.refusal(request) == .consentRevoked)
            #expect(flow.apple.requests == 1)
            try await expectNothing(flow)
        }
    }

    @Test(
        "Of two sign-ins of a person, the later token's is in force, whichever is settled first.",
        arguments: [true, false]
    )
    func twoSignIns(laterFirst: Bool) async throws {
        try await FlowFixture.with { flow in
            let older = try flow.apple.signIn(members: ",\"age\":120")
            let later = try flow.apple.signIn(nonce: "nonce-two")
            let first = try flow.request(older, session: "s1")
            let second = try flow.request(later, nonce: "nonce-two", session: "s2")
            // The one that begins later is settled while Apple is asked for the tokens of the other one.
            flow.apple.whileAsked { _ = try await flow.signIn(laterFirst ? second : first) }
            _ = try await flow.signIn(laterFirst ? first : second)
            let place = "FROM siwa.sign_ins WHERE session_id = 's2'"
            #expect(
                try await flow.texts(
                    "SELECT (obtained_at = (SELECT signed_in_at \(place)))::text FROM siwa.apple_tokens"
                ) == ["true"]
            )
            #expect(
                try await flow.texts("SELECT (authorized_at = (SELECT signed_in_at \(place)))::text FROM siwa.consents")
                    == ["true"]
            )
            #expect(try await flow.texts("SELECT session_id FROM siwa.live_sessions ORDER BY 1") == ["s1", "s2"])
        }
    }
}
