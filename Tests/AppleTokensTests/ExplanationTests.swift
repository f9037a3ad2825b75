import AppleTokens
import AppleSimulator
import JOSE
import Testing

@Suite struct ExplanationTests {
    @Test("A verified token passes every check in order.")
    func verified() throws {
        let fixture = try VerifierFixture.set()
        let checks = fixture.explanation(of: try fixture.apple.token(claims: ClaimText.notification.text))
        #expect(checks.map(\.name) == Check.Name.allCases)
        #expect(checks.allSatisfy { $0.passed && !$0.detail.isEmpty })
    }

    @Test("An explanation ends at the check that decided, and is the decision's.")
    func failures() throws {
        let fixture = try VerifierFixture.set()
        let good = ClaimText.notification
        let cases: [(String, Check.Name)] = [
            ("x", .token),
            (try fixture.apple.token(claims: good.text, header: "{\"alg\":\"RS256\"}"), .token),
            (try fixture.apple.token(claims: good.text, header: "{\"kid\":\"x\",\"alg\":\"none\"}"), .algorithm),
            (try fixture.apple.token(claims: "{}", header: "{\"alg\":\"ES256\",\"x5c\":[]}"), .algorithm),
            (try fixture.stranger.token(claims: good.text), .key),
            (try fixture.stranger.token(claims: good.text, header: fixture.apple.header), .signature),
            (try fixture.apple.token(claims: "x"), .claims),
            (try fixture.apple.token(claims: good.with("iss", "1").text), .issuer),
            (
                try fixture.apple.identityToken(sub: "s", app: VerifierFixture.app, issuedAt: VerifierFixture.issuedAt),
                .events
            ),
            (try fixture.apple.token(claims: good.with("aud", "\"x\"").text), .audience),
            (try fixture.apple.token(claims: good.with("aud", "1").text), .audience),
            (try fixture.apple.token(claims: good.with("exp", "1").text), .times),
            (try fixture.apple.token(claims: good.with("iat", "1880000000").text), .times),
            (try fixture.apple.token(claims: good.with("jti", nil).text), .event),
            (try fixture.apple.token(claims: ClaimText.notification(of: .event.with("type", "\"x\"")).text), .event),
        ]
        for (token, name) in cases {
            let checks = fixture.explanation(of: token)
            #expect(checks.last?.name == name)
            #expect(checks.map(\.name) == Array(Check.Name.allCases.prefix(checks.count)))
            #expect(checks.dropLast().allSatisfy { $0.passed && !$0.detail.isEmpty })
            let last = try #require(checks.last)
            #expect(!last.passed)
            switch fixture.decision(on: token) {
            case .verified: Issue.record("verified, though a check failed: \(name)")
            case .refused(let rejection): #expect(last.detail.contains(rejection.rawValue))
            case .deadLetter(let letter): #expect(last.detail == "\(letter.reason.rawValue): \(letter.detail)")
            case .needsKey(let kid, _): #expect(last.detail.contains(kid))
            }
        }
    }

    @Test("A token that its algorithm ends is not said to be decoded as a whole.")
    func undecoded() throws {
        let token = Base64URL.encode(Array("{\"alg\":\"none\"}".utf8)) + ".!.!"
        let fixture = try VerifierFixture.set()
        let checks = fixture.explanation(of: token)
        #expect(checks.map(\.name) == [.token, .algorithm])
        #expect(checks.first?.detail == "looks like a compact JWS")
        let whole = fixture.explanation(of: try fixture.apple.token(claims: ClaimText.notification.text))
        #expect(whole.first?.detail == "a compact JWS")
    }

    @Test("A missing key is explained with the keys at hand.")
    func missingKey() throws {
        let fixture = try VerifierFixture.set()
        let token = try fixture.stranger.token(claims: ClaimText.notification.text)
        #expect(fixture.explanation(of: token).last?.detail.contains(fixture.apple.keyID) == true)
        #expect(fixture.explanation(of: token, keys: KeySet.none).last?.detail.contains("none") == true)
    }
}
