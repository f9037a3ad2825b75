import AppleSimulator
import AppleTokens
import Basics
import JOSE
import Postgres
import SignIn
import Telemetry
import Testing

@testable import SignInFlow

@Suite("Signing in", .timeLimit(.minutes(5)))
struct SignInTests {
    @Test("The first sign-in answers who came, opens the session, and stores Apple's refresh token sealed.")
    func first() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let answer = try await flow.signIn(flow.request(device, session: "s1"), by: Caller(name: "shop"))
            #expect(!answer.isRepeated && answer.isNewAccount && answer.account.subject.rawValue == device.subject)
            #expect(answer.account.app == AppID("com.example.one") && answer.account.state == "authorized")
            #expect(answer.name?.given == device.user["name"]?["firstName"]?.string)
            #expect(answer.email?.isDeliverable == true && answer.isEmailLinkable)
            #expect(answer.realUserStatus == "likely-real" && answer.refreshToken == .stored)
            #expect(answer.session?.isLive == true && answer.session?.createdAt == answer.signedInAt)
            let sealed = try await flow.texts("SELECT convert_from(sealed, 'UTF8') FROM siwa.apple_tokens")
            let place = SealedRefreshToken(account: answer.account.id, client: ClientID("com.example.one"))
            let token = try place.open(Array(sealed[0].utf8), with: flow.sealingKeys)
            #expect(token.hasPrefix("r") && sealed.count == 1 && flow.apple.requests == 1)
            #expect(!flow.log.text.contains(device.code) && !flow.log.text.contains(device.token))
            let account = "\"account_id\":\"\(answer.account.id)\""
            let signIn = "\"sign_in_id\":\"\(answer.signInID)\""
            #expect(flow.log.count("\"signed in\"", account, signIn, "\"caller\":\"shop\"") == 1)
        }
    }

    @Test("A later sign-in returns the name again, and is no new account.")
    func later() async throws {
        try await FlowFixture.with { flow in
            _ = try await flow.signIn(flow.request(flow.apple.signIn()))
            let device = try flow.apple.signIn(nonce: "nonce-two")
            let answer = try await flow.signIn(flow.request(device, nonce: "nonce-two"))
            #expect(device.user == .null && answer.name?.given != nil)
            #expect(!answer.isNewAccount && answer.realUserStatus == nil && answer.refreshToken == .stored)
        }
    }

    @Test("The answer tells whether the private relay forwards mail to the person, also when it is repeated.")
    func forwarding() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn(members: ",\"hide_email\":true")
            let usual = try flow.request(device, session: "s1")
            let second = try flow.apple.signIn(nonce: "nonce-two")
            let codeOnly = try flow.request(second, nonce: "nonce-two", session: "s2", token: false)
            for request in [usual, codeOnly] {
                let email = try await flow.signIn(request).email
                #expect(email?.isPrivate == true && email?.isDeliverable == true)
            }
            for (event, age) in [("email-disabled", 60), ("email-enabled", 30)] {
                try await flow.record(event, of: device.subject, at: .now() - .seconds(age))
                let isForwarded = event == "email-enabled"
                for request in [usual, codeOnly] {
                    let answer = try await flow.signIn(request)
                    #expect(answer.isRepeated && answer.email?.isDeliverable == isForwarded, "\(event)")
                }
                // Sign-ins with and without a code are settled by different statements.
                for code in [true, false] {
                    let nonce = "nonce-\(event)-\(code)"
                    let request = try flow.request(flow.apple.signIn(nonce: nonce), nonce: nonce, code: code)
                    let answer = try await flow.signIn(request)
                    #expect(!answer.isRepeated && answer.email?.isDeliverable == isForwarded, "\(event), \(code)")
                }
            }
        }
    }

    @Test("Names that are not to be kept are in the first answer only.")
    func namesNotKept() async throws {
        var rules = FlowFixture.Rules()
        rules.keepsNames = false
        try await FlowFixture.with(rules) { flow in
            #expect(try await flow.signIn(flow.request(flow.apple.signIn())).name != nil)
            let device = try flow.apple.signIn(nonce: "nonce-two")
            #expect(try await flow.signIn(flow.request(device, nonce: "nonce-two")).name == nil)
            #expect(try await flow.texts("SELECT given FROM siwa.kept_names").isEmpty)
        }
    }

    @Test("Names that were stored before are not given out any more once names are not to be kept.")
    func storedNames() async throws {
        try await FlowFixture.with { flow in
            #expect(try await flow.signIn(flow.request(flow.apple.signIn())).name != nil)
            var rules = FlowFixture.Rules()
            rules.keepsNames = false
            try flow.replace(rules)
            let device = try flow.apple.signIn(nonce: "nonce-two")
            #expect(try await flow.signIn(flow.request(device, nonce: "nonce-two")).name == nil)
            let third = try flow.apple.signIn(nonce: "nonce-three")
            let user = #","user":{"given_name":"Augusta","family_name":"King"}"#
            let request = try flow.request(third, nonce: "nonce-three", members: user)
            #expect(try await flow.signIn(request).name?.given == "Augusta")
            try flow.replace(FlowFixture.Rules())
            let later = try flow.apple.signIn(nonce: "nonce-four")
            #expect(try await flow.signIn(flow.request(later, nonce: "nonce-four")).name != nil)
        }
    }

    @Test("Without a code nothing is asked of Apple, and an older token is kept.")
    func withoutCode() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let answer = try await flow.signIn(flow.request(device, code: false))
            #expect(answer.refreshToken == .none && flow.apple.requests == 0)
            let second = try flow.apple.signIn(nonce: "nonce-two")
            #expect(try await flow.signIn(flow.request(second, nonce: "nonce-two")).refreshToken == .stored)
            let third = try flow.apple.signIn(nonce: "nonce-three")
            let request = try flow.request(third, nonce: "nonce-three", code: false)
            #expect(try await flow.signIn(request).refreshToken == .kept)
        }
    }

    @Test("A code alone signs in with the identity token of Apple's answer.")
    func codeOnly() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let answer = try await flow.signIn(flow.request(device, session: "s1", token: false))
            #expect(answer.account.subject.rawValue == device.subject && answer.refreshToken == .stored)
            let again = try await flow.signIn(flow.request(device, session: "s1", token: false))
            #expect(again.isRepeated && again.signInID == answer.signInID && flow.apple.requests == 1)
            let other = try flow.apple.signIn(nonce: "nonce-two")
            #expect(try await flow.refusal(flow.request(other, nonce: "nonce-three", token: false)) == .nonceMismatch)
            #expect(try await flow.refusal(flow.request(other, nonce: nil, token: false)) == .nonceMissing)
        }
    }

    @Test(
        "A sign-in by a code alone has the time of the login at Apple, and at most ten minutes before Apple's answer.",
        arguments: [(30, 30), (600, 600), (601, 600), (86_400, 600)] as [(Int64, Int64)]
    )
    func codeOnlyTime(age: Int64, expected: Int64) async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let now = WallTime.now().wholeSeconds
            let identity = SimulatedIdentity(
                sub: device.subject,
                client: "com.example.one",
                issuedAt: now,
                authenticatedAt: now - age,
                nonce: "nonce-of-ada",
                companion: .accessToken("a1")
            )
            try flow.apple.answer(access: "a1", identity: flow.apple.signer.token(for: identity))
            let answer = try await flow.signIn(flow.request(device, session: "s1", token: false))
            #expect(answer.signedInAt == WallTime(seconds: now - expected))
            #expect(answer.session?.createdAt == answer.signedInAt && answer.session?.isLive == true)
        }
    }

    @Test("With a slow clock, a sign-in by a code alone is not set before Apple's time of issue.")
    func codeOnlySlowClock() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let issued = WallTime.now().wholeSeconds + 60
            let identity = SimulatedIdentity(
                sub: device.subject,
                client: "com.example.one",
                issuedAt: issued,
                authenticatedAt: issued,
                nonce: "nonce-of-ada",
                companion: .accessToken("a1")
            )
            try flow.apple.answer(access: "a1", identity: flow.apple.signer.token(for: identity))
            let answer = try await flow.signIn(flow.request(device, session: "s1", token: false))
            #expect(answer.signedInAt == WallTime(seconds: issued))
        }
    }

    @Test(
        "Apple's guess about the person is in the answer, in the same answer again, and in the row of the sign-in.",
        arguments: [(0, "unsupported"), (1, "unknown"), (2, "likely-real")]
    )
    func realUserStatus(number: Int, word: String) async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn(members: ",\"real_user_status\":\(number)")
            let request = try flow.request(device, session: "s1")
            #expect(try await flow.signIn(request).realUserStatus == word)
            let again = try await flow.signIn(request)
            #expect(again.isRepeated && again.realUserStatus == word)
            #expect(try await flow.texts("SELECT real_user_status FROM siwa.sign_ins") == [word])
        }
    }

    /// What a device gets if Apple's token has these claims about the person.
    private static func device(claims: String, from apple: LocalApple) throws -> LocalApple.Device {
        var device = try apple.signIn()
        let now = WallTime.now().wholeSeconds
        let identity = SimulatedIdentity(
            sub: device.subject,
            client: "com.example.one",
            issuedAt: now,
            authenticatedAt: now,
            nonce: "nonce-of-ada",
            companion: .code(device.code)
        )
        let signer = apple.signer
        device.token = try signer.token(claims: "\(identity.claims(issuer: signer.issuer).dropLast()),\(claims)}")
        return device
    }

    @Test("The organization of a managed account and the person of a transfer are in the answer.")
    func organization() async throws {
        try await FlowFixture.with { flow in
            let address = #""email":"eve@example.com","email_verified":true"#
            let claims = #""org_id":"o1","transfer_sub":"000999.a.1","real_user_status":7,\#(address)"#
            let device = try Self.device(claims: claims, from: flow.apple)
            let request = try flow.request(device, session: "s1")
            for isRepeated in [false, true] {
                let answer = try await flow.signIn(request)
                #expect(answer.isRepeated == isRepeated)
                #expect(answer.organization == "o1" && answer.transferSubject == "000999.a.1")
                #expect(answer.email?.address == "eve@example.com" && !answer.isEmailLinkable)
                // Apple has not documented that number.
                #expect(answer.realUserStatus == nil)
            }
            #expect(try await flow.texts("SELECT email FROM siwa.accounts") == ["eve@example.com"])
            let second = try flow.apple.signIn(nonce: "nonce-two")
            let answer = try await flow.signIn(flow.request(second, nonce: "nonce-two"))
            #expect(answer.organization == nil && answer.transferSubject == nil && answer.isEmailLinkable)
        }
    }

    @Test(
        "Without an address that Apple has verified, the answer has none, and none is stored.",
        arguments: [
            #""further":true"#, #""email":"eve@example.com""#,
            #""email":"eve@example.com","email_verified":false"#,
            #""email":"eve@example.com","email_verified":"false","is_private_email":"false""#,
            #""org_id":"o1","email":null,"email_verified":true"#,
        ]
    )
    func noAddress(claims: String) async throws {
        try await FlowFixture.with { flow in
            let device = try Self.device(claims: claims, from: flow.apple)
            // The unsigned member `user` has an address, too.
            #expect(device.user["email"]?.string == "ada@example.com")
            let answer = try await flow.signIn(flow.request(device, session: "s1", code: false))
            #expect(answer.email == nil && !answer.isEmailLinkable)
            #expect(answer.account.subject.rawValue == device.subject && answer.session?.isLive == true)
            #expect(try await flow.texts("SELECT email FROM siwa.accounts") == ["NULL"])
        }
    }

    @Test("A session that has expired already is refused before anything is used.")
    func expiredSession() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let session = ",\"session\":{\"id\":\"s1\",\"expires_at\":\"2020-01-01T00:00:00Z\"}"
            #expect(try await flow.refusal(flow.request(device, members: session)) == .malformedRequest)
            #expect(flow.apple.requests == 0)
            #expect(try await flow.signIn(flow.request(device, session: "s1")).session?.isLive == true)
        }
    }

    @Test("The token's own time is that of the sign-in and of the session, however late it arrives.")
    func late() async throws {
        try await FlowFixture.with { flow in
            let earliest = WallTime(seconds: WallTime.now().wholeSeconds) - .seconds(240)
            let device = try flow.apple.signIn(members: ",\"age\":240")
            let latest = WallTime.now() - .seconds(240)
            let answer = try await flow.signIn(flow.request(device, session: "s1"))
            #expect(earliest <= answer.signedInAt && answer.signedInAt <= latest)
            #expect(answer.session?.createdAt == answer.signedInAt)
            let authorized = "(SELECT authorized_at FROM siwa.consents)"
            #expect(try await flow.texts("SELECT (signed_in_at = \(authorized))::text FROM siwa.sign_ins") == ["true"])
        }
    }

    @Test("Each request is counted by its outcome, and each question to Apple by its result.")
    func counted() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            _ = try await flow.signIn(flow.request(device, session: "s1"))
            _ = try await flow.signIn(flow.request(device, session: "s1"))
            _ = try await flow.refusal(flow.request(device))
            _ = try await flow.refusal(flow.request(device, client: "com.example.none"))
            try flow.apple.behave("{\"status\":500}")
            let second = try flow.apple.signIn(nonce: "nonce-two")
            _ = try await flow.signIn(flow.request(second, nonce: "nonce-two"))
            let lines = Set(flow.metrics.registry.prometheusText().split(separator: "\n").map(String.init))
            for line in [
                "siwad_sign_ins_total{outcome=\"signed-in\"} 2", "siwad_sign_ins_total{outcome=\"repeated\"} 1",
                "siwad_sign_ins_total{outcome=\"token-used\"} 1",
                "siwad_sign_ins_total{outcome=\"unknown-client\"} 1",
                "siwad_sign_in_duration_seconds_count 5",
                "siwad_apple_requests_total{endpoint=\"token\",result=\"issued\"} 1",
                "siwad_apple_requests_total{endpoint=\"token\",result=\"server-error\"} 1",
            ] {
                #expect(lines.contains(line), "\(line)")
            }
        }
    }

    @Test("Refusals that a stranger can cause are all counted, and logged once in 30 seconds for each reason.")
    func refusedBeforehand() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let shop = Caller(name: "shop")
            for _ in 0..<3 {
                for reason in [Problem.Reason.unauthenticated, .bodyTooLarge, .malformedRequest] {
                    let caller = reason == .malformedRequest ? shop : nil
                    flow.service.signInRefused(Problem(reason, "It is refused."), by: caller)
                }
                _ = try await flow.refusal(flow.request(device, client: "com.example.none"), by: shop)
            }
            let text = flow.metrics.registry.prometheusText()
            for (reason, caller, lines) in [
                ("unauthenticated", "", 1), ("body-too-large", "", 1), ("malformed-request", "shop", 3),
                ("unknown-client", "shop", 3),
            ] {
                #expect(text.contains("siwad_sign_ins_total{outcome=\"\(reason)\"} 3\n"), "\(reason)")
                let name = "\"caller\":\"\(caller)\""
                #expect(flow.log.count("sign-in refused", reason, name) == lines, "\(reason)")
                #expect(flow.log.count("sign-in refused", reason) == lines, "\(reason)")
            }
        }
    }

    @Test("A client id that is not configured, or not allowed to the caller, is refused.")
    func clients() async throws {
        try await FlowFixture.with { flow in
            let device = try flow.apple.signIn()
            let request = try flow.request(device)
            #expect(try await flow.refusal(flow.request(device, client: "com.example.none")) == .unknownClient)
            let web = Caller(name: "web", clients: [ClientID("com.example.web")])
            #expect(await flow.refusal(request, by: web) == .clientNotAllowed)
            #expect(try await flow.refusal(flow.request(device, client: "com.example.two")) == .wrongAudience)
            let shop = Caller(name: "shop", clients: [ClientID("com.example.one")])
            _ = try await flow.signIn(request, by: shop)
            #expect(try await flow.texts("SELECT caller FROM siwa.sign_ins") == ["shop"])
        }
    }

    @Test("A code is refused where siwad has no key to trade it, and demanded where the exchange is required.")
    func codeRules() async throws {
        var rules = FlowFixture.Rules()
        rules.appleKeys = []
        try await FlowFixture.with(rules) { flow in
            let device = try flow.apple.signIn()
            #expect(try await flow.refusal(flow.request(device)) == .malformedRequest)
            _ = try await flow.signIn(flow.request(device, code: false))
            try flow.replace(FlowFixture.Rules(exchange: .required))
            let second = try flow.apple.signIn(nonce: "nonce-two")
            let request = try flow.request(second, nonce: "nonce-two", code: false)
            #expect(await flow.refusal(request) == .malformedRequest)
        }
    }

    @Test("Sessions are shown and ended for callers of their app only.")
    func sessions() async throws {
        try await FlowFixture.with { flow in
            _ = try await flow.signIn(flow.request(flow.apple.signIn(), session: "s1"))
            let other = Caller(name: "other", clients: [ClientID("com.example.two")])
            let own = Caller(name: "own", clients: [ClientID("com.example.web")])
            await #expect(throws: Problem.self) { try await flow.service.session("s1", by: other) }
            await #expect(throws: Problem.self) { try await flow.service.endSession("s1", by: other) }
            #expect(try await flow.service.session("s1", by: own).isLive)
            try await flow.service.endSession("s1", by: own)
            try await flow.service.endSession("s1", by: nil)
            let ended = try await flow.service.session("s1", by: nil)
            #expect(!ended.isLive && ended.endReason == "signed-out" && ended.endedAt != nil)
            await #expect(throws: Problem.self) { try await flow.service.session("s2", by: nil) }
        }
    }

    @Test("The details of what is not found are the examples in the endpoint's document.")
    func notFoundExamples() async throws {
        let root = #filePath.split(separator: "/").dropLast(3).joined(separator: "/")
        let file = "/\(root)/Sources/WebServer/Application/openapi.json"
        let responses = try JSONValue(parsing: readFile(atPath: file))["components"]?["responses"]
        func example(_ response: String) -> String? {
            let examples = responses?[response]?["content"]?["application/problem+json"]?["examples"]
            return examples?["not-found"]?["value"]?["detail"]?.string
        }
        var rules = FlowFixture.Rules()
        rules.hasSealingKeys = false
        try await FlowFixture.with(rules) { flow in
            let session = await #expect(throws: Problem.self) { try await flow.service.session("s1", by: nil) }
            #expect(session != nil && session?.detail == example("NotFound"))
            let nonce = await #expect(throws: Problem.self) {
                try await flow.service.issueNonce(for: ClientID("com.example.one"), by: nil)
            }
            #expect(nonce != nil && nonce?.detail == example("NoNonces"))
        }
    }

    @Test("After the shutdown has begun, nothing is accepted.")
    func draining() async throws {
        try await FlowFixture.with { flow in
            flow.service.drain()
            let refusal = try await flow.refusal(flow.request(flow.apple.signIn()))
            #expect(refusal == .draining)
            #expect(flow.apple.requests == 0)
        }
    }

    @Test("The metric has every outcome that a sign-in can have.")
    func outcomes() {
        let others: [Problem.Reason] = [.notFound, .methodNotAllowed]
        let reasons = Problem.Reason.allCases.filter { !others.contains($0) }.map(\.rawValue)
        #expect(SignInMetrics.outcomes == ["signed-in", "repeated"] + reasons)
    }
}
