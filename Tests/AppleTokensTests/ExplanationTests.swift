import AppleTokens
import AppleSimulator
import JOSE
import Testing

@Suite struct ExplanationTests {
    @Test("A verified token passes every check in order.")
    func verified() throws {
        let stage = try Stage.set()
        let checks = stage.explanation(of: try stage.apple.token(claims: ClaimText.notification.text))
        #expect(checks.map(\.name) == Check.Name.allCases)
        #expect(checks.allSatisfy { $0.passed && !$0.detail.isEmpty })
    }

    @Test("An explanation ends at the check that decided, and is the verdict's.")
    func failures() throws {
        let stage = try Stage.set()
        let good = ClaimText.notification
        let cases: [(String, Check.Name)] = [
            ("x", .token),
            (try stage.apple.token(claims: good.text, header: "{\"alg\":\"RS256\"}"), .token),
            (try stage.apple.token(claims: good.text, header: "{\"kid\":\"x\",\"alg\":\"none\"}"), .algorithm),
            (try stage.apple.token(claims: "{}", header: "{\"alg\":\"ES256\",\"x5c\":[]}"), .algorithm),
            (try stage.stranger.token(claims: good.text), .key),
            (try stage.stranger.token(claims: good.text, header: stage.apple.header), .signature),
            (try stage.apple.token(claims: "x"), .claims),
            (try stage.apple.token(claims: good.with("iss", "1").text), .issuer),
            (try stage.apple.identityToken(sub: "s", app: Stage.app, issuedAt: Stage.issuedAt), .events),
            (try stage.apple.token(claims: good.with("aud", "\"x\"").text), .audience),
            (try stage.apple.token(claims: good.with("aud", "1").text), .audience),
            (try stage.apple.token(claims: good.with("exp", "1").text), .times),
            (try stage.apple.token(claims: good.with("iat", "1880000000").text), .times),
            (try stage.apple.token(claims: good.with("jti", nil).text), .event),
            (try stage.apple.token(claims: ClaimText.notification(of: .event.with("type", "\"x\"")).text), .event),
        ]
        for (token, name) in cases {
            let checks = stage.explanation(of: token)
            #expect(checks.last?.name == name)
            #expect(checks.map(\.name) == Array(Check.Name.allCases.prefix(checks.count)))
            #expect(checks.dropLast().allSatisfy { $0.passed && !$0.detail.isEmpty })
            let last = try #require(checks.last)
            #expect(!last.passed)
            switch stage.verdict(on: token) {
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
        let stage = try Stage.set()
        let checks = stage.explanation(of: token)
        #expect(checks.map(\.name) == [.token, .algorithm])
        #expect(checks.first?.detail == "looks like a compact JWS")
        let whole = stage.explanation(of: try stage.apple.token(claims: ClaimText.notification.text))
        #expect(whole.first?.detail == "a compact JWS")
    }

    @Test("A missing key is explained with the keys at hand.")
    func missingKey() throws {
        let stage = try Stage.set()
        let token = try stage.stranger.token(claims: ClaimText.notification.text)
        #expect(stage.explanation(of: token).last?.detail.contains(stage.apple.keyID) == true)
        #expect(stage.explanation(of: token, keys: KeySet.none).last?.detail.contains("none") == true)
    }
}
