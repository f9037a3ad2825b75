import AppleSimulator
import AppleTokens
import Basics
import JOSE
import Postgres
import SignIn
import Telemetry
import Testing

@testable import SignInFlow

@Suite("Single use", .timeLimit(.minutes(5)))
struct SingleUseTests {
    @Test("The same request gets the same answer again, and Apple is asked once.")
    func repeated() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let request = try flow.request(device, session: "s1")
            let first = try await flow.signIn(request)
            var again = try await flow.signIn(request)
            #expect(again.isRepeated)
            again.isRepeated = false
            #expect(again == first && flow.apple.requests == 1)
            let keyed = try flow.apple.signIn(nonce: "nonce-two")
            let second = try flow.request(keyed, nonce: "nonce-two", key: "0123456789abcdef")
            let id = try await flow.signIn(second).signInID
            #expect(try await flow.signIn(second).signInID == id)
        }
    }

    @Test("A code alone gets the same answer again for twenty minutes after the sign-in, then it is too old.")
    func repeatedCode() async throws {
        try await FlowFixture.with { flow in
            let request = try flow.request(flow.apple.signIn(), session: "s1", token: false)
            let first = try await flow.signIn(request)
            func makeOlder(by seconds: Int) async throws {
                try await flow.run("UPDATE siwa.sign_ins SET signed_in_at = signed_in_at - interval '\(seconds) s'")
            }
            try await makeOlder(by: 1_100)
            let again = try await flow.signIn(request)
            #expect(again.isRepeated && again.signInID == first.signInID)
            try await makeOlder(by: 101)
            #expect(await flow.refusal(request) == .tokenTooOld)
            #expect(flow.apple.requests == 1)
        }
    }

    @Test("A token that is presented again without the session or key of its sign-in, or with another, is refused.")
    func otherAttempt() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            _ = try await flow.signIn(flow.request(device, session: "s1"))
            #expect(try await flow.refusal(flow.request(device)) == .tokenUsed)
            #expect(try await flow.refusal(flow.request(device, session: "s2")) == .tokenUsed)
            #expect(try await flow.refusal(flow.request(device, key: "0123456789abcdef")) == .tokenUsed)
            #expect(try await flow.refusal(flow.request(device, session: "s1", code: false)) == .tokenUsed)
            #expect(flow.apple.requests == 1)
        }
    }

    @Test("A nonce is accepted with one token only.")
    func nonce() async throws {
        try await FlowFixture.with { flow in
            _ = try await flow.signIn(flow.request(flow.apple.signIn()))
            #expect(try await flow.refusal(flow.request(flow.apple.signIn())) == .nonceUsed)
        }
    }

    @Test("A session id that is in use is refused before the code is used.")
    func session() async throws {
        try await FlowFixture.with { flow in
            _ = try await flow.signIn(flow.request(flow.apple.signIn(), session: "s1"))
            let device = try flow.apple.signIn(nonce: "nonce-two")
            #expect(try await flow.refusal(flow.request(device, nonce: "nonce-two", session: "s1")) == .sessionTaken)
            #expect(flow.apple.requests == 1)
            #expect(
                try await flow.signIn(flow.request(device, nonce: "nonce-two", session: "s2")).refreshToken == .stored
            )
        }
    }

    @Test("While a sign-in takes longer than three seconds, an equal request is refused as in progress.")
    func inProgress() async throws {
        try await FlowFixture.with { flow in
            let request = try flow.request(flow.apple.signIn(), session: "s1")
            flow.apple.whileAsked {
                let start = ContinuousClock.now
                #expect(await flow.refusal(request) == .inProgress)
                #expect(.now - start >= .seconds(3))
            }
            #expect(try await flow.signIn(request).session?.isLive == true)
            #expect(try await flow.signIn(request).isRepeated)
            #expect(flow.apple.requests == 1)
        }
    }

    @Test("Of two equal requests at the same time one works, and the other gets its answer.")
    func together() async throws {
        try await FlowFixture.with { flow in
            let request = try flow.request(flow.apple.signIn(), session: "s1")
            async let one = flow.signIn(request)
            async let other = flow.signIn(request)
            let answers = try await [one, other]
            #expect(answers[0].signInID == answers[1].signInID && answers.count(where: \.isRepeated) == 1)
            #expect(flow.apple.requests == 1)
        }
    }
}
