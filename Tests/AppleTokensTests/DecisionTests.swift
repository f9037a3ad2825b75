import AppleTokens
import AppleSimulator
import JOSE
import Testing

@Suite struct DecisionTests {
    /// One mistake and what it alone leads to.
    struct Mistake: Sendable, CustomTestStringConvertible {
        let name: String
        let decision: String
        let make: @Sendable (ClaimText) -> ClaimText

        var testDescription: String { name }
    }

    /// In the order of the decisions: of two mistakes the earlier decides.
    static let mistakes = [
        Mistake(name: "another issuer", decision: "wrong-issuer") { $0.with("iss", "\"https://evil.example\"") },
        Mistake(name: "no events", decision: "not-a-notification") { $0.with("events", nil) },
        Mistake(name: "an unknown audience", decision: "unknown-audience") { $0.with("aud", "\"com.example.other\"") },
        Mistake(name: "long expired", decision: "expired") { $0.with("exp", "1500000000") },
        Mistake(name: "issued in the future", decision: "not-yet-valid") { $0.with("iat", "1780000000") },
        Mistake(name: "no id", decision: "malformed-claims") { $0.with("jti", nil) },
    ]

    @Test("A mistake alone decides.", arguments: mistakes)
    func alone(mistake: Mistake) throws {
        let fixture = try VerifierFixture.set()
        #expect(try fixture.decision(on: mistake.make(.notification)).summary == mistake.decision)
    }

    @Test("Of two mistakes the one that is looked for first decides.")
    func pairs() throws {
        let fixture = try VerifierFixture.set()
        for (index, first) in Self.mistakes.enumerated() {
            for second in Self.mistakes[(index + 1)...] {
                let decision = try fixture.decision(on: second.make(first.make(.notification)))
                #expect(decision.summary == first.decision, "\(first.name) and \(second.name)")
            }
        }
    }

    @Test("An unknown type decides only when nothing else is wrong.")
    func unknownType() throws {
        let fixture = try VerifierFixture.set()
        let unknown = ClaimText.notification(of: .event.with("type", "\"account-merged\""))
        #expect(try fixture.decision(on: unknown).summary == "unknown-event-type")
        for mistake in Self.mistakes {
            #expect(try fixture.decision(on: mistake.make(unknown)).summary == mistake.decision, "\(mistake.name)")
        }
        let twice = ClaimText.notification(of: .event.with("type", "\"x\"").with("sub", nil))
        #expect(try fixture.decision(on: twice).summary == "malformed-claims")
    }

    @Test("The signature is checked before anything that is signed is looked at.")
    func signatureFirst() throws {
        let fixture = try VerifierFixture.set()
        let header = fixture.apple.header
        for claims in Self.mistakes.map({ $0.make(.notification).text }) + ["", "not JSON", "{}", "{\"a\":1,\"a\":2}"] {
            let token = try fixture.stranger.token(claims: claims, header: header)
            #expect(fixture.decision(on: token).summary == "bad-signature", "\(claims)")
        }
    }

    @Test("The key is looked for before the signature, and nothing of the token is believed for it.")
    func keyFirst() throws {
        let fixture = try VerifierFixture.set()
        let token = try fixture.stranger.token(claims: ClaimText.notification.text)
        let expected = Decision.needsKey(kid: fixture.stranger.keyID, token: Array(token.utf8))
        #expect(fixture.decision(on: token) == expected)
        #expect(fixture.decision(on: try fixture.apple.token(claims: "{}"), keys: KeySet.none).summary == "needs-key")
    }

    @Test("A dead letter says what could be read, and the key that signed it.")
    func deadLetter() throws {
        let fixture = try VerifierFixture.set()
        let claims = ClaimText.notification(of: .event.with("type", "\"account-merged\""))
        let token = try fixture.apple.token(claims: claims.text)
        let letter = try #require(fixture.decision(on: token).deadLetter)
        #expect(letter.reason == .unknownEventType)
        #expect(letter.notificationID == "S25cB0PbHs6y97gYYmgydQ")
        #expect(letter.audience == VerifierFixture.app)
        #expect(letter.subject == "000768.6166f031167141e695698239959f591a.1521")
        #expect(letter.eventType == "account-merged")
        #expect(letter.verifiedKeyID == fixture.apple.keyID)
        #expect(letter.token == Array(token.utf8))
    }

    @Test("The sentence of a dead letter holds no value of a claim.")
    func sentences() throws {
        let fixture = try VerifierFixture.set()
        for mistake in Self.mistakes {
            guard let letter = try fixture.decision(on: mistake.make(.notification)).deadLetter else { continue }
            #expect(letter.detail.hasSuffix("."))
            for value in ["000768", "S25cB0", "abc123", "com.example"] { #expect(!letter.detail.contains(value)) }
        }
    }

    @Test("Signed by Apple but no strict JSON: a dead letter that says nothing of its content.")
    func notJSON() throws {
        let fixture = try VerifierFixture.set()
        let valid = ClaimText.notification.text
        let deep = String(repeating: "[", count: 40) + String(repeating: "]", count: 40)
        let open = String(valid.dropLast())
        let payloads: [String] = [
            "\(valid)x", "\u{FEFF}\(valid)", open, "[\(valid)]", "\(open),\"iss\":\"x\"}",
            "\(open),\"\\u0069ss\":\"x\"}", "\(open),\"x\":\(deep)}", "\(open),\"x\":01}",
            "\(open),\"x\":\"\\u0000\"}", "\(open),\"x\":\"\\ud800\"}", "{\"x\":\"\\u0000\",\"events\" \t\r\n:{}}",
        ]
        for payload in payloads {
            let letter = try #require(fixture.decision(on: try fixture.apple.token(claims: payload)).deadLetter)
            #expect(letter.reason == .malformedClaims)
            #expect(letter.verifiedKeyID == fixture.apple.keyID)
            #expect(letter.notificationID == nil && letter.audience == nil && letter.subject == nil)
        }
    }

    @Test("Signed by Apple but no strict JSON, and without events: no notification, whatever its strings hold.")
    func notJSONWithoutEvents() throws {
        let fixture = try VerifierFixture.set()
        let claims = ClaimText.notification.with("events", nil)
        var payloads = ["", "x", "[]", "null", "\"x\"", "\"events\"", "[\"events\"]", "\(claims.text)x"]
        for nonce in [
            "\\u0000", "\\ud800", "\u{1}", "\\u0000\\\"events\\\":{}", "\\ud800\\\\\\\"events\\\" :\\\"",
            "events\\u0000",
        ] {
            payloads.append(claims.with("nonce", "\"\(nonce)\"").text)
        }
        payloads.append(claims.with("nonce", "\"events\"").with("x", "\"\\u0000\"").text)
        for payload in payloads {
            let token = try fixture.apple.token(claims: payload)
            #expect(fixture.decision(on: token) == .refused(.notANotification), "\(payload)")
            let last = try #require(fixture.explanation(of: token).last)
            #expect(last.name == .claims && !last.passed && last.detail.hasPrefix("not-a-notification: "))
        }
    }

    @Test("An identity token is named as no notification.")
    func identityToken() throws {
        let fixture = try VerifierFixture.set()
        let token = try fixture.apple.identityToken(
            sub: "000768.x.1521",
            app: VerifierFixture.app,
            issuedAt: VerifierFixture.issuedAt
        )
        #expect(fixture.decision(on: token) == .refused(.notANotification))
    }

    @Test("The issuer is compared byte by byte.")
    func issuer() throws {
        let fixture = try VerifierFixture.set()
        for issuer in ["https://appleid.apple.com/", "https://APPLEID.apple.com", "", "http://appleid.apple.com"] {
            let claims = ClaimText.notification.with("iss", JSONValue.quoted(issuer))
            #expect(try fixture.decision(on: claims).summary == "wrong-issuer")
        }
        // Swift takes the Kelvin sign for a K.
        let policy = NotificationPolicy(issuer: "https://example.com/K", audiences: fixture.policy.audiences)
        let verifier = NotificationVerifier(policy: policy)
        for (issuer, expected) in [
            ("https://example.com/K", "verified"), ("https://example.com/\u{212A}", "wrong-issuer"),
        ] {
            let claims = ClaimText.notification.with("iss", JSONValue.quoted(issuer)).text
            let token = Array(try fixture.apple.token(claims: claims).utf8)
            #expect(verifier.verify(token: token, keys: fixture.keys, now: fixture.now).summary == expected)
        }
    }
}
