import AppleSimulator
import AppleTokens
import Basics
import JOSE
import SignIn
import Testing

@testable import SignInFlow

@Suite("Nonces, from the request to the answer", .timeLimit(.minutes(5)))
struct RequestNonceTests {
    @Test("With the policy issued, only nonces of siwad's own are accepted, for their client and in their time.")
    func issuedNonces() async throws {
        try await FlowFixture.with(FlowFixture.Rules(nonce: .issued)) { flow in
            let client = ClientID("com.example.one")
            let nonce = try await flow.service.issueNonce(for: client, by: nil)
            let native = try flow.apple.signIn(nonce: nonce.sha256)
            _ = try await flow.signIn(flow.request(native, nonce: nonce.nonce))
            let chosen = try flow.apple.signIn(nonce: "nonce-of-device")
            #expect(try await flow.refusal(flow.request(chosen, nonce: "nonce-of-device")) == .nonceMismatch)
            let foreign = try await flow.service.issueNonce(for: ClientID("com.example.two"), by: nil).nonce
            let device = try flow.apple.signIn(nonce: foreign)
            #expect(try await flow.refusal(flow.request(device, nonce: foreign)) == .nonceMismatch)
            #expect(try await flow.refusal(flow.request(device, nonce: foreign, token: false)) == .nonceMismatch)
            let late = try IssuedNonces(keys: flow.sealingKeys).issue(for: client, now: .now() - .seconds(700))
            let tardy = try flow.apple.signIn(nonce: late)
            #expect(try await flow.refusal(flow.request(tardy, nonce: late)) == .nonceExpired)
        }
    }

    @Test("With each policy, a nonce of siwad's own is accepted in its time only.", arguments: NoncePolicy.allCases)
    func lateNonce(policy: NoncePolicy) async throws {
        try await FlowFixture.with(FlowFixture.Rules(nonce: policy)) { flow in
            let client = ClientID("com.example.one")
            let late = try IssuedNonces(keys: flow.sealingKeys).issue(for: client, now: .now() - .seconds(700))
            let tardy = try flow.apple.signIn(nonce: late)
            for token in [true, false] {
                let request = try flow.request(tardy, nonce: late, token: token)
                #expect(await flow.refusal(request) == .nonceExpired, "\(token)")
            }
            #expect(flow.apple.requests == 0)
            #expect(try await flow.texts("SELECT 1::text FROM siwa.sign_ins").isEmpty)
            let nonce = try await flow.service.issueNonce(for: client, by: nil).nonce
            let device = try flow.apple.signIn(nonce: nonce)
            #expect(try await flow.signIn(flow.request(device, nonce: nonce)).refreshToken == .stored)
        }
    }

    @Test(
        "A nonce of siwad's own must be in its time when Apple issues the token, so the same request works as long as the token.",
        arguments: NoncePolicy.allCases
    )
    func repeatedWithLateNonce(policy: NoncePolicy) async throws {
        try await FlowFixture.with(FlowFixture.Rules(exchange: .required, nonce: policy)) { flow in
            // Valid until 100 seconds ago.
            let nonces = try IssuedNonces(keys: flow.sealingKeys)
            let issuedAt = WallTime.now() - .seconds(700)
            let nonce = try nonces.issue(for: ClientID("com.example.one"), now: issuedAt)
            let device = try flow.apple.signIn(nonce: nonce, members: ",\"age\":200")
            let request = try flow.request(device, nonce: nonce, session: "s1")
            try flow.apple.behave("{\"status\":500}")
            #expect(await flow.refusal(request) == .appleUnavailable)
            let first = try await flow.signIn(request)
            let again = try await flow.signIn(request)
            #expect(!first.isRepeated && again.isRepeated && again.signInID == first.signInID)
            // It is used only once all the same.
            #expect(try await flow.refusal(flow.request(device, nonce: nonce)) == .tokenUsed)
            let second = try flow.apple.signIn(nonce: nonce, members: ",\"age\":200")
            #expect(try await flow.refusal(flow.request(second, nonce: nonce)) == .nonceUsed)
            let late = try nonces.issue(for: ClientID("com.example.one"), now: issuedAt)
            let tardy = try flow.apple.signIn(nonce: late, members: ",\"age\":50")
            #expect(try await flow.refusal(flow.request(tardy, nonce: late)) == .nonceExpired)
        }
    }

    @Test("With a slow clock, a nonce of siwad's own is in its time by that clock, too.")
    func nonceWithSlowClock() async throws {
        try await FlowFixture.with { flow in
            // Valid for 100 more seconds, and Apple's clock is 200 seconds ahead.
            let nonces = try IssuedNonces(keys: flow.sealingKeys)
            let nonce = try nonces.issue(for: ClientID("com.example.one"), now: .now() - .seconds(500))
            var device = try flow.apple.signIn(nonce: nonce)
            let issuedAt = WallTime.now().wholeSeconds + 200
            let identity = SimulatedIdentity(
                sub: device.subject,
                client: "com.example.one",
                issuedAt: issuedAt,
                authenticatedAt: issuedAt,
                nonce: nonce,
                companion: .code(device.code)
            )
            device.token = try flow.apple.signer.token(for: identity)
            let answer = try await flow.signIn(flow.request(device, nonce: nonce, session: "s1"))
            #expect(answer.session?.isLive == true)
        }
    }

    @Test("A code alone is answered again after the time of siwad's own nonce, to the same request only.")
    func repeatedCodeWithLateNonce() async throws {
        try await FlowFixture.with { flow in
            // siwad doesn't know its nonces as such before it knows the key.
            let keys = try SealingKeys(parsing: SealingKeys.newLine(name: "k2"))
            let nonces = try IssuedNonces(keys: keys)
            let nonce = try nonces.issue(for: ClientID("com.example.one"), now: .now() - .seconds(700))
            let device = try flow.apple.signIn(nonce: nonce)
            let request = try flow.request(device, nonce: nonce, session: "s1", token: false)
            let first = try await flow.signIn(request)
            try flow.replace(FlowFixture.Rules(nonce: .issued), sealingKeys: keys)
            let again = try await flow.signIn(request)
            #expect(again.isRepeated && again.signInID == first.signInID && flow.apple.requests == 1)
            let other = try flow.request(device, nonce: nonce, session: "s2", token: false)
            #expect(await flow.refusal(other) == .tokenUsed)
        }
    }

    @Test("Without a nonce, people sign in with the policy optional only.", arguments: NoncePolicy.allCases)
    func noNonce(policy: NoncePolicy) async throws {
        try await FlowFixture.with(FlowFixture.Rules(nonce: policy)) { flow in
            let isOptional = policy == .optional
            for token in [true, false] {
                let device = try flow.apple.signIn(nonce: nil)
                let request = try flow.request(device, nonce: nil, token: token)
                #expect(await flow.refusal(request) == (isOptional ? nil : .nonceMissing), "\(token)")
            }
            #expect(flow.apple.requests == (isOptional ? 2 : 0))
            // A nonce in Apple's token must be known in every policy.
            for token in [true, false] {
                let request = try flow.request(flow.apple.signIn(), nonce: nil, token: token)
                #expect(await flow.refusal(request) == .nonceMissing, "\(token)")
            }
            let count = try await flow.texts("SELECT 1::text FROM siwa.sign_ins").count
            #expect(count == (isOptional ? 2 : 0))
        }
    }

    @Test("A nonce is issued to callers that may act for its client, where siwad has sealing keys.")
    func nonceCallers() async throws {
        try await FlowFixture.with { flow in
            func refusal(for client: String, by caller: Caller?) async -> Problem.Reason? {
                do throws(Problem) {
                    _ = try await flow.service.issueNonce(for: ClientID(client), by: caller)
                    return nil
                } catch {
                    return error.reason
                }
            }
            let own = Caller(name: "own", clients: [ClientID("com.example.one")])
            let other = Caller(name: "other", clients: [ClientID("com.example.web")])
            #expect(await refusal(for: "com.example.one", by: own) == nil)
            #expect(await refusal(for: "com.example.one", by: other) == .clientNotAllowed)
            #expect(await refusal(for: "com.example.none", by: nil) == .unknownClient)
            var rules = FlowFixture.Rules()
            rules.hasSealingKeys = false
            try flow.replace(rules)
            #expect(await refusal(for: "com.example.one", by: own) == .notFound)
            #expect(await refusal(for: "com.example.one", by: other) == .clientNotAllowed)
        }
    }
}
