import AppleTokens
import AppleSimulator
import JOSE
import Testing

@Suite struct TokenFormTests {
    private let claims = ClaimText.notification.text

    @Test(
        "What isn't a compact JWS is refused.",
        arguments: [
            "", ".", "..", "...", "a.b", "a.b.c", "a.b.c.d", "e30.e30.e30", "eyJhbGciOiJSUzI1NiJ9.e30.AA==",
            " eyJhbGciOiJSUzI1NiJ9.e30.AAAA", "eyJhbGciOiJSUzI1NiJ9.e30.AAAA\n", "eyJhbGciOiJSUzI1NiJ9.e30.",
        ]
    )
    func malformed(token: String) throws {
        #expect(try VerifierFixture.set().decision(on: token) == .refused(.malformedToken))
    }

    @Test("A token that names no key is refused, and so is one whose header asks for an extension.")
    func headers() throws {
        let fixture = try VerifierFixture.set()
        let kid = JSONValue.quoted(fixture.apple.keyID)
        let headers = [
            "{\"alg\":\"RS256\"}", "{\"kid\":null,\"alg\":\"RS256\"}", "{\"kid\":1,\"alg\":\"RS256\"}",
            "{\"kid\":\"\",\"alg\":\"RS256\"}", "{\"kid\":\(kid)}",
            "{\"kid\":\(kid),\"alg\":\"RS256\",\"crit\":[\"x\"]}",
            "{\"kid\":\(kid),\"alg\":\"RS256\",\"b64\":false}", "{\"kid\":\(kid),\"kid\":\(kid),\"alg\":\"RS256\"}",
            "[]", "null", "",
        ]
        for header in headers {
            let token = try fixture.apple.token(claims: claims, header: header)
            #expect(fixture.decision(on: token) == .refused(.malformedToken), "\(header)")
        }
    }

    @Test("Where a token says that its key is to be found is never looked at.")
    func keyInHeader() throws {
        let fixture = try VerifierFixture.set()
        let kid = JSONValue.quoted(fixture.apple.keyID)
        let jwk = try #require(fixture.stranger.keys.first).json
        let places = "\"jwk\":\(jwk),\"jku\":\"https://evil.example\",\"x5c\":[\"AA\"]"
        let header = "{\"kid\":\(kid),\"alg\":\"RS256\",\(places)}"
        let forged = try fixture.stranger.token(claims: claims, header: header)
        #expect(fixture.decision(on: forged) == .refused(.badSignature))
        let honest = try fixture.apple.token(claims: claims, header: header)
        #expect(fixture.decision(on: honest).summary == "verified")
    }

    @Test(
        "Every other algorithm is refused by name, whatever the signature is.",
        arguments: ["none", "None", "HS256", "RS384", "RS512", "PS256", "ES256", "EdDSA", "rs256", "RS256 ", ""]
    )
    func algorithms(algorithm: String) throws {
        let fixture = try VerifierFixture.set()
        let kid = JSONValue.quoted(fixture.apple.keyID)
        let header = "{\"kid\":\(kid),\"alg\":\(JSONValue.quoted(algorithm))}"
        let token = try fixture.apple.token(claims: claims, header: header)
        #expect(fixture.decision(on: token) == .refused(.unsupportedAlgorithm))
    }

    @Test("A header without typ and one with any typ are verified alike.")
    func type() throws {
        let fixture = try VerifierFixture.set()
        let header = String(fixture.apple.header.dropLast()) + ",\"typ\":\"secevent+jwt\"}"
        #expect(fixture.decision(on: try fixture.apple.token(claims: claims, header: header)).summary == "verified")
        #expect(fixture.decision(on: try fixture.apple.token(claims: claims)).summary == "verified")
    }

    @Test("A token of the App Store is named as what it is, also with the long header of a real one.")
    func appStore() throws {
        let fixture = try VerifierFixture.set()
        let certificate = "\"" + String(repeating: "MIIE", count: 500) + "\""
        let headers = [
            "{\"alg\":\"ES256\",\"x5c\":[\"MIIE\"]}", "{\"alg\":\"ES256\",\"x5c\":[\(certificate),\(certificate)]}",
            "{\"alg\":\"ES256\",\"kid\":\"x\",\"x5c\":[\(certificate)]}",
        ]
        for header in headers {
            let token = try fixture.apple.token(claims: "{}", header: header)
            #expect(fixture.decision(on: token) == .refused(.appStoreNotification))
        }
        let tooLong = try fixture.apple.token(claims: "{}", header: "{\"alg\":\"RS256\",\"x5c\":[\(certificate)]}")
        #expect(fixture.decision(on: tooLong) == .refused(.malformedToken))
    }

    @Test("A signature of another key, of another token or of another length is refused.")
    func signatures() throws {
        let fixture = try VerifierFixture.set()
        let token = try fixture.apple.token(claims: claims)
        let other = try fixture.apple.token(claims: ClaimText.notification.with("jti", "\"x\"").text)
        let parts = token.split(separator: ".")
        let otherParts = other.split(separator: ".")
        let forged = try fixture.stranger.token(claims: claims, header: fixture.apple.header)
        let mixed = "\(parts[0]).\(parts[1]).\(otherParts[2])"
        let short = "\(parts[0]).\(parts[1]).\(parts[2].prefix(340))"
        let zeros = "\(parts[0]).\(parts[1]).\(Base64URL.encode([UInt8](repeating: 0, count: 256)))"
        for token in [forged, mixed, short, zeros] {
            #expect(fixture.decision(on: token) == .refused(.badSignature))
        }
    }

    @Test("One verifier serves one key set after the other.")
    func keySets() throws {
        let fixture = try VerifierFixture.set()
        let verifier = NotificationVerifier(policy: fixture.policy)
        let sets = [fixture.keys, KeySet(fixture.stranger.keys, fetchedAt: nil), KeySet.none]
        let renamed = try SimulatedApple(key: fixture.stranger.key, keyID: fixture.apple.keyID)
        let again = KeySet(renamed.keys, fetchedAt: nil)
        let own = Array(try fixture.apple.token(claims: claims).utf8)
        let foreign = Array(try fixture.stranger.token(claims: claims).utf8)
        for _ in 0..<2 {
            let verdicts = (sets + [again]).map { keys in
                [own, foreign].map { verifier.verify(token: $0, keys: keys, now: fixture.now).summary }
            }
            #expect(verdicts.map { $0[0] } == ["verified", "needs-key", "needs-key", "bad-signature"])
            #expect(verdicts.map { $0[1] } == ["needs-key", "verified", "needs-key", "needs-key"])
        }
    }

    @Test("No token, however mangled, brings the verifier down.")
    func mangled() throws {
        let fixture = try VerifierFixture.set()
        let verifier = NotificationVerifier(policy: fixture.policy)
        var random = SplitMix(state: 20_260_102)
        let token = Array(try fixture.apple.token(claims: claims).utf8)
        for _ in 0..<3_000 {
            var mangled = token
            for _ in 0..<Int.random(in: 1...4, using: &random) {
                let place = Int.random(in: mangled.indices, using: &random)
                switch Int.random(in: 0..<4, using: &random) {
                case 0: mangled[place] = UInt8.random(in: .min ... .max, using: &random)
                case 1: mangled.remove(at: place)
                case 2: mangled.insert(UInt8(ascii: "."), at: place)
                default: mangled.removeLast(min(mangled.count - 1, place))
                }
            }
            guard mangled != token else { continue }
            let decision = verifier.verify(token: mangled, keys: fixture.keys, now: fixture.now)
            #expect(decision.notification == nil && decision.deadLetter == nil)
        }
    }

    @Test("No signed payload, however mangled, brings the verifier down.")
    func mangledClaims() throws {
        let fixture = try VerifierFixture.set()
        let verifier = NotificationVerifier(policy: fixture.policy)
        var random = SplitMix(state: 20_260_103)
        let valid = Array(claims.utf8)
        let header = Array(fixture.apple.header.utf8)
        for _ in 0..<300 {
            var mangled = valid
            for _ in 0..<Int.random(in: 1...3, using: &random) {
                let place = Int.random(in: mangled.indices, using: &random)
                mangled[place] = Array("\"\\{}[]:,0919eE.-u\u{0}\u{7F}".utf8).randomElement(using: &random) ?? 0
            }
            let token = try CompactJWS.signed(header: header, payload: mangled, by: fixture.apple.key)
            let decision = verifier.verify(token: Array(token.utf8), keys: fixture.keys, now: fixture.now)
            #expect(decision.summary != "bad-signature" && decision.summary != "needs-key")
        }
    }
}

/// Random numbers that are the same in every run (Steele, Lea, Flood: SplitMix64).
private struct SplitMix: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var word = state
        word = (word ^ (word >> 30)) &* 0xBF58_476D_1CE4_E5B9
        word = (word ^ (word >> 27)) &* 0x94D0_49BB_1331_11EB
        return word ^ (word >> 31)
    }
}
