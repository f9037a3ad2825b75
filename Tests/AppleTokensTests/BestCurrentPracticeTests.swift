import AppleTokens
import AppleSimulator
import JOSE
import Testing

/// The checklist of RFC 8725 (JSON Web Token Best Current Practices) and of what its successor, draft-ietf-oauth-rfc8725bis,
/// adds: one test for each item, on the whole verifier. A comment at each test names the suites with the details.
@Suite("RFC 8725 and its successor")
struct BestCurrentPracticeTests {
    private let claims = ClaimText.notification.text

    private func decision(header: String, claims: String? = nil) throws -> Decision {
        let fixture = try VerifierFixture.set()
        return fixture.decision(on: try fixture.apple.token(claims: claims ?? self.claims, header: header))
    }

    private func header(_ members: String, kid: String? = nil) throws -> String {
        "{\"kid\":\(JSONValue.quoted(try kid ?? VerifierFixture.set().apple.keyID)),\(members)}"
    }

    /// More: `AlgorithmConfusionTests`, `TokenFormTests/algorithms`.
    @Test(
        "§3.1 The algorithm is verified: an allow-list of one, compared exactly, in the header's own member.",
        arguments: [
            "\"alg\":\"none\"", "\"alg\":\"nOnE\"", "\"alg\":\"NONE\"", "\"alg\":\"HS256\"", "\"alg\":\"hs256\"",
            "\"alg\":\"rs256\"", "\"alg\":\"RS256\\u0000\"", "\"alg\":[\"RS256\"]", "\"alg\":{\"RS256\":1}",
            "\"ALG\":\"RS256\"",
            "\"alg\":null", "\"alg\":true", "\"alg\":256", "\"alg\":\"PBES2-HS256+A128KW\",\"p2c\":2147483647",
            "\"alg\":\"RSA1_5\",\"enc\":\"A128GCM\"", "\"alg\":\"dir\",\"enc\":\"A128GCM\"", "\"alg\":\"PS256\"",
        ]
    )
    func algorithm(members: String) throws {
        let decision = try decision(header: header(members))
        #expect([.refused(.unsupportedAlgorithm), .refused(.malformedToken)].contains(decision), "\(decision)")
    }

    /// More: `JSONWebKeyTests`.
    @Test("§3.2, §3.5 Keys are strong: a modulus below 2048 bits and exponents that are small or even make no key.")
    func strongKeys() throws {
        let modulus = try VerifierFixture.set().apple.key.publicKey.modulus
        for (modulus, exponent) in [
            (Array(modulus.dropLast()), [1, 0, 1]), (modulus, [3]), (modulus, [1]), (modulus, [1, 0, 0]), (modulus, []),
            (modulus, [0, 1, 0, 1]), (modulus.dropLast() + [2], [1, 0, 1]),
        ] as [([UInt8], [UInt8])] {
            #expect(throws: JOSEError.self) { _ = try RSAPublicKey(modulus: modulus, exponent: exponent) }
        }
    }

    /// More: `TokenFormTests/signatures`, `RSAVerifierTests`, `OpenSSLTests`.
    @Test("§3.3 Every cryptographic operation is checked: any change of any part ends in a refusal.")
    func everyOperation() throws {
        let fixture = try VerifierFixture.set()
        let token = Array(try fixture.apple.token(claims: claims).utf8)
        let verifier = NotificationVerifier(policy: fixture.policy)
        for place in stride(from: 0, to: token.count, by: 7) where token[place] != UInt8(ascii: ".") {
            var changed = token
            changed[place] = token[place] == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
            let decision = verifier.verify(token: changed, keys: fixture.keys, now: fixture.now)
            #expect(decision.notification == nil && decision.deadLetter == nil, "\(place)")
        }
    }

    /// More: `JSONWebKeySetTests`.
    @Test("§3.4 Cryptographic inputs are validated: a key of another type, use or name is not used.")
    func inputs() throws {
        let key = try VerifierFixture.set().apple.keys[0]
        let numbers = key.json.dropFirst(
            "{\"kty\":\"RSA\",\"kid\":\"\(key.keyID)\",\"use\":\"sig\",\"alg\":\"RS256\",".count
        )
        for members in [
            "\"kty\":\"EC\",\"kid\":\"a\"", "\"kty\":\"oct\",\"kid\":\"a\"",
            "\"kty\":\"RSA\",\"kid\":\"a\",\"use\":\"enc\"",
            "\"kty\":\"RSA\",\"kid\":\"a\",\"alg\":\"RSA-OAEP\"",
            "\"kty\":\"RSA\",\"kid\":\"a\",\"key_ops\":[\"sign\"]",
            "\"kty\":\"RSA\",\"kid\":\"a\",\"d\":\"AQAB\"", "\"kty\":\"RSA\",\"kid\":\"a b\"", "\"kty\":\"RSA\"",
        ] {
            let set = "{\"keys\":[{\(members),\(numbers)]}"
            #expect(throws: JOSEError.self, "\(members)") { _ = try JSONWebKeySet(parsing: Array(set.utf8)) }
        }
    }

    @Test("§3.6 Nothing is decompressed, so nothing can grow: zip is refused.")
    func compression() throws {
        #expect(try decision(header: header("\"alg\":\"RS256\",\"zip\":\"DEF\"")) == .refused(.malformedToken))
    }

    /// More: `JSONStringTests`, `JSONDifferentialTests`.
    @Test("§3.7 Texts are UTF-8: a byte that isn't, or a byte order mark, makes header and claims unreadable.")
    func encoding() throws {
        let fixture = try VerifierFixture.set()
        for bytes in [[0xFF], [0xC0, 0x80], [0xED, 0xA0, 0x80]] as [[UInt8]] {
            let text = Array("{\"x\":\"".utf8) + bytes + Array("\",".utf8)
            let header = text + Array(fixture.apple.header.utf8.dropFirst())
            let inHeader = try CompactJWS.signed(header: header, payload: Array(claims.utf8), by: fixture.apple.key)
            #expect(fixture.decision(on: inHeader) == .refused(.malformedToken))
            let payload = text + Array(claims.utf8.dropFirst())
            let inClaims = try CompactJWS.signed(
                header: Array(fixture.apple.header.utf8),
                payload: payload,
                by: fixture.apple.key
            )
            #expect(fixture.decision(on: inClaims).summary == "malformed-claims")
        }
        #expect(try decision(header: "\u{FEFF}" + fixture.apple.header) == .refused(.malformedToken))
    }

    /// More: `DecisionTests`, `ClaimTests/issuer`.
    @Test("§3.8 The issuer is Apple, to the byte; a key of Apple's doesn't make another issuer Apple.")
    func issuer() throws {
        let issuers = [
            "https://appleid.apple.com/", "http://appleid.apple.com", "https://appleid.apple.com.evil.example",
            "HTTPS://appleid.apple.com", "https://account.apple.com", "", "https://appleid.apple.com ",
        ]
        for issuer in issuers {
            let decision = try VerifierFixture.set().decision(
                on: ClaimText.notification.with("iss", JSONValue.quoted(issuer))
            )
            #expect(decision == .refused(.wrongIssuer), "\(issuer)")
        }
    }

    /// More: `AudienceMapTests/routing`, `ClaimTests/audience`.
    @Test("§3.9 The audience is one of the apps, to the byte: no prefix, no wildcard, no list.")
    func audience() throws {
        for audience in [
            "\"com.example.app.other\"", "\"com.example\"", "\"*\"", "\"COM.EXAMPLE.APP\"", "\"com.example.app \"",
            "[\"com.example.app\"]", "[\"com.example.app\",\"x\"]", "{\"com.example.app\":1}", "null",
        ] {
            let decision = try VerifierFixture.set().decision(on: ClaimText.notification.with("aud", audience))
            #expect(["unknown-audience", "malformed-claims"].contains(decision.summary), "\(audience)")
        }
    }

    /// More: `CompactJWSTests/keyIDInjection`, `ReferencedKeyTests`, which proves that no request is made.
    @Test(
        "§3.10 Claims aren't trusted: a kid that is SQL, a path, an address or a command selects a key or nothing.",
        arguments: [
            "' OR '1'='1", "x' UNION SELECT jwk FROM siwa.signing_keys--", "../../../../dev/null", "/dev/null",
            "file:///etc/passwd", "http://127.0.0.1/keys", "//evil.example/keys", "ldap://evil.example", "| id",
            "$(id)", "`id`",
            "%0d%0aSet-Cookie:x", "x\r\nX: y", "x\u{0}", "{{7*7}}", "${jndi:ldap://x}", "\u{202E}", "k\u{301}", "*", "",
            String(repeating: "a", count: 257), "<script>", "__proto__", "0", "%s%n", "\\..\\x",
        ]
    )
    func keyID(kid: String) throws {
        switch try decision(header: header("\"alg\":\"RS256\"", kid: kid)) {
        case .needsKey(let wanted, _):
            #expect(wanted == kid)
            #expect(kid.utf8.allSatisfy { 0x21...0x7E ~= $0 } && 1...256 ~= kid.utf8.count)
        case .refused(let rejection): #expect(rejection == .malformedToken)
        case .verified, .deadLetter: Issue.record("a key was found")
        }
    }

    @Test("§3.11, §3.12 A token of another kind that Apple signs is no notification, whatever its typ says.")
    func otherKinds() throws {
        let fixture = try VerifierFixture.set()
        let identity = try fixture.apple.identityToken(
            sub: "a",
            app: VerifierFixture.app,
            issuedAt: VerifierFixture.issuedAt
        )
        #expect(fixture.decision(on: identity) == .refused(.notANotification))
        // Of the same key and audience: an identity token under every type, and a token without any claim of a kind.
        for type in ["JWT", "at+jwt", "secevent+jwt", "logout+jwt", "application/jwt", ""] {
            let header = try header("\"alg\":\"RS256\",\"typ\":\(JSONValue.quoted(type))")
            let claims = ClaimText.notification.with("events", nil).with("sub", "\"a\"").text
            #expect(try decision(header: header, claims: claims) == .refused(.notANotification), "\(type)")
        }
        // Security event tokens have events by URI (RFC 8417), a logout token too: kept, since Apple may have signed it.
        for events in ["{\"http://schemas.openid.net/event/backchannel-logout\":{}}", "{}", "[]", "\"\"", "0"] {
            let decision = fixture.decision(
                on: try fixture.apple.token(claims: ClaimText.notification.with("events", events).text)
            )
            #expect(decision.summary == "malformed-claims", "\(events)")
        }
    }

    /// More: `CompactJWSTests/parts`.
    @Test("Successor: a JWE, a JSON serialisation and a nested token are no token.")
    func otherForms() throws {
        let fixture = try VerifierFixture.set()
        let token = try fixture.apple.token(claims: claims)
        let parts = token.split(separator: ".")
        for form in [
            "\(token).\(parts[1]).\(parts[2])", "\(parts[0])..\(parts[1]).\(parts[2]).AA",
            "{\"protected\":\"\(parts[0])\",\"payload\":\"\(parts[1])\",\"signature\":\"\(parts[2])\"}",
            "{\"payload\":\"\(parts[1])\",\"signatures\":[{\"protected\":\"\(parts[0])\",\"signature\":\"\(parts[2])\"}]}",
            "Bearer \(token)", "\"\(token)\"",
        ] {
            #expect(fixture.decision(on: form) == .refused(.malformedToken), "\(form.prefix(40))")
        }
        let nested = try fixture.apple.token(claims: token, header: header("\"alg\":\"RS256\",\"cty\":\"JWT\""))
        #expect(fixture.decision(on: nested).summary == "not-a-notification")
    }

    /// More: `EventShapeTests/duplicates`.
    @Test("Successor: a member that comes twice makes header, claims and event unreadable.")
    func duplicates() throws {
        let fixture = try VerifierFixture.set()
        #expect(try decision(header: header("\"alg\":\"none\",\"alg\":\"RS256\"")) == .refused(.malformedToken))
        for name in ["iss", "aud", "exp", "iat", "jti", "events", "unknown"] {
            let value = ClaimText.notification[name] ?? "1"
            let twice = "{\"\(name)\":\(value)," + ClaimText.notification.with(name, value).text.dropFirst()
            #expect(
                fixture.decision(on: try fixture.apple.token(claims: twice)).summary == "malformed-claims",
                "\(name)"
            )
        }
    }

    /// More: `ClaimTests`, `WallTimeTests`.
    @Test(
        "Times beyond every range, of any spelling, are malformed, expired or not yet valid, and trap nothing.",
        arguments: ["iat", "exp", "event_time"]
    )
    func times(name: String) throws {
        let fixture = try VerifierFixture.set()
        for number in [
            "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551616", "1e308",
            "1e400",
            "-1e400", "1e-400", "0", "-1", "0.5", "1e18", "9007199254740993", "253402300800",
            "1" + String(repeating: "0", count: 999),
        ] {
            let claims =
                name == "event_time"
                ? ClaimText.notification(of: .event.with(name, number)) : ClaimText.notification.with(name, number)
            let decision = try fixture.decision(on: claims)
            let expected = ["malformed-claims", "not-yet-valid", "expired"]
            #expect(expected.contains(decision.summary), "\(number): \(decision.summary)")
        }
    }
}
