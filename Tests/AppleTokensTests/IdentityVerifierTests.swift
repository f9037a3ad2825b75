import AppleTokens
import AppleSimulator
import Basics
import JOSE
import Testing

@Suite("Identity tokens")
struct IdentityVerifierTests {
    private let claims = IdentityFixture.claims

    @Test("A token is verified, with everything that it says about the person.")
    func verified() throws {
        let fixture = try VerifierFixture.set()
        let identity = try #require(try IdentityFixture.decision(on: claims).identity)
        #expect(identity.client == IdentityFixture.client)
        #expect(identity.subject == Subject("000768.6166f031167141e695698239959f591a.1521"))
        #expect(identity.issuedAt == WallTime(seconds: VerifierFixture.issuedAt))
        #expect(identity.expiresAt == WallTime(seconds: VerifierFixture.issuedAt + 86_400))
        #expect(identity.authenticatedAt == WallTime(seconds: VerifierFixture.issuedAt - 2))
        #expect(identity.email?.address == "k7x2m9@privaterelay.appleid.com" && identity.email?.isPrivate == true)
        #expect(identity.realUserStatus == .likelyReal)
        #expect(identity.transferSubject == nil && identity.organization == nil)
        #expect(identity.keyID == fixture.apple.keyID)
    }

    @Test("Flags are booleans or texts; without an address, unverified or malformed, the sign-in has none.")
    func email() throws {
        for (verified, isPrivate) in [("true", "true"), ("\"true\"", "\"true\""), ("true", "\"true\"")] {
            let claims = claims.with("email_verified", verified).with("is_private_email", isPrivate)
            let email = try IdentityFixture.decision(on: claims).identity?.email
            #expect(email?.isPrivate == true, "\(verified) \(isPrivate)")
        }
        for isPrivate in [nil, "false", "\"false\"", "1", "null"] {
            let identity = try IdentityFixture.decision(on: claims.with("is_private_email", isPrivate)).identity
            #expect(identity?.email?.isPrivate == false)
            #expect(identity?.isEmailLinkable == true)
        }
        let none: [ClaimText] = [
            claims.with("email", nil), claims.with("email", "null"), claims.with("email", "7"),
            claims.with("email", "\"\""),
            claims.with("email", "\"a\\u0000b@example.com\"".replacing("\\u0000", with: "\\u0007")),
            claims.with("email", "\"\(String(repeating: "a", count: 321))\""), claims.with("email_verified", nil),
            claims.with("email_verified", "false"), claims.with("email_verified", "\"false\""),
            claims.with("email_verified", "\"TRUE\""), claims.with("email_verified", "1"),
        ]
        for claims in none {
            let identity = try #require(try IdentityFixture.decision(on: claims).identity, "\(claims.text)")
            #expect(identity.email == nil && !identity.isEmailLinkable, "\(claims.text)")
        }
        #expect(try IdentityFixture.decision(on: claims).identity?.isEmailLinkable == false)
        let managed = claims.with("is_private_email", nil).with("org_id", "\"org\"")
        #expect(try IdentityFixture.decision(on: managed).identity?.isEmailLinkable == false)
    }

    @Test("The further claims about a person are read if they have their type, and ignored otherwise.")
    func person() throws {
        let statuses: [(String?, VerifiedIdentity.RealUserStatus?)] = [
            ("0", .unsupported), ("1", .unknown), ("2", .likelyReal), ("7", .unrecognized(7)), (nil, nil),
            ("\"2\"", nil),
        ]
        for (text, status) in statuses {
            let identity = try IdentityFixture.decision(on: claims.with("real_user_status", text)).identity
            #expect(identity?.realUserStatus == status, "\(text ?? "-")")
        }
        let moved = try IdentityFixture.decision(
            on: claims.with("transfer_sub", "\"000999.a.1\"").with("org_id", "\"o1\"").with("auth_time", nil)
        ).identity
        #expect(moved?.transferSubject == "000999.a.1" && moved?.organization == "o1")
        #expect(moved != nil && moved?.authenticatedAt == nil)
    }

    // MARK: - Attacks

    @Test(
        "Only RS256 is accepted, and no header says where the key is.",
        arguments: ["none", "HS256", "ES256", "RS512", "PS256", "rs256"]
    )
    func algorithms(algorithm: String) throws {
        let kid = try VerifierFixture.set().apple.keyID
        let header = #"{"kid":"\#(kid)","alg":"\#(algorithm)"}"#
        #expect(try IdentityFixture.decision(on: claims, header: header).summary == "unsupported-algorithm")
        let signed = try VerifierFixture.set().apple.token(claims: claims.text, header: header)
        let unsigned = signed.split(separator: ".").prefix(2).joined(separator: ".") + "."
        #expect(try IdentityFixture.decision(on: unsigned).summary != "verified")
    }

    @Test(
        "A header that requires an extension is refused; one that brings its key along is judged by Apple's key.",
        arguments: [#""crit":["b64"]"#, #""b64":false"#, #""zip":"DEF""#, #""enc":"A256GCM""#]
    )
    func headers(member: String) throws {
        let kid = try VerifierFixture.set().apple.keyID
        let header = #"{"kid":"\#(kid)","alg":"RS256",\#(member)}"#
        #expect(try IdentityFixture.decision(on: claims, header: header).summary == "malformed-token")
    }

    @Test("A key in the header is not used.", arguments: ["jwk", "jku", "x5u", "x5c"])
    func keysInHeader(member: String) throws {
        let fixture = try VerifierFixture.set()
        let value = member == "jwk" ? fixture.stranger.keys[0].json : #""https://example.com/""#
        let header = #"{"kid":"\#(fixture.apple.keyID)","alg":"RS256","\#(member)":\#(value)}"#
        let forged = try fixture.stranger.token(claims: claims.text, header: header)
        #expect(try IdentityFixture.decision(on: forged).summary == "bad-signature")
        #expect(try IdentityFixture.decision(on: claims, header: header).summary == "verified")
    }

    @Test("A forged signature, an unknown key, and a token without a key are refused.")
    func forged() throws {
        let fixture = try VerifierFixture.set()
        let header = #"{"kid":"\#(fixture.apple.keyID)","alg":"RS256"}"#
        let forged = try fixture.stranger.token(claims: claims.text, header: header)
        #expect(try IdentityFixture.decision(on: forged).summary == "bad-signature")
        let unknown = try fixture.stranger.token(claims: claims.text)
        #expect(try IdentityFixture.decision(on: unknown) == .needsKey(kid: fixture.stranger.keyID))
        let nameless = try IdentityFixture.decision(on: claims, header: #"{"alg":"RS256"}"#)
        #expect(nameless.summary == "malformed-token")
        for text in ["", "a.b.c", "a.b", "{}", "..", "a.b.c.d.e"] {
            #expect(try IdentityFixture.decision(on: text).summary == "malformed-token", "\(text)")
        }
    }

    @Test(
        "A token of another client is refused: of the same team, of another team, with further audiences.",
        arguments: [
            #""com.example.web""#, #""com.example.other""#, #""com.example.App""#, #""com.example.app ""#, #""""#,
            "null", "7",
            #"["com.example.app"]"#, #"["com.example.app","com.example.other"]"#, "\"com.example.\u{1D5BA}pp\"",
        ]
    )
    func audience(audience: String) throws {
        let decision = try IdentityFixture.decision(on: claims.with("aud", audience))
        #expect(decision.summary == "wrong-audience")
        #expect(decision.detail?.contains("expected com.example.app") == true)
        #expect(try IdentityFixture.decision(on: claims.with("aud", nil)).summary == "wrong-audience")
    }

    @Test(
        "Issuers that look like Apple's are refused.",
        arguments: [
            "https://appleid.apple.com/", "http://appleid.apple.com", "https://appleid.apple.com.example.com",
            "https://account.apple.com", "HTTPS://appleid.apple.com", "https://appleid.\u{0430}pple.com", "",
        ]
    )
    func issuer(issuer: String) throws {
        let decision = try IdentityFixture.decision(on: claims.with("iss", JSONValue.quoted(issuer)))
        #expect(decision.summary == "wrong-issuer")
        #expect(try IdentityFixture.decision(on: claims.with("iss", nil)).summary == "wrong-issuer")
    }

    @Test("A notification is no identity token, and an identity token no notification.")
    func kinds() throws {
        let fixture = try VerifierFixture.set()
        let notification = try fixture.apple.token(claims: ClaimText.notification.text)
        #expect(try IdentityFixture.decision(on: notification).summary == "not-an-identity-token")
        #expect(try IdentityFixture.decision(on: claims.with("events", "{}")).summary == "not-an-identity-token")
        #expect(try fixture.decision(on: claims).summary == "not-a-notification")
    }

    @Test(
        "A repeated member makes a token malformed.",
        arguments: ["sub", "aud", "nonce", "iss", "iat", "c_hash", "events"]
    )
    func repeated(member: String) throws {
        var text = claims.text
        text.removeLast()
        let value = claims[member] ?? "{}"
        let further = claims[member] == nil ? ",\"\(member)\":\(value)" : ""
        let token = try VerifierFixture.set().apple.token(claims: text + further + ",\"\(member)\":\(value)}")
        #expect(try IdentityFixture.decision(on: token).summary == "malformed-token")
    }

    @Test("Claims that are not one strict JSON object to their end make a token malformed.")
    func strictClaims() throws {
        let apple = try VerifierFixture.set().apple
        func verify(_ payload: [UInt8]) throws -> IdentityDecision {
            let header = Array(apple.header.utf8)
            return try IdentityFixture.decision(on: CompactJWS.signed(header: header, payload: payload, by: apple.key))
        }
        func expectMalformed(_ payload: [UInt8], _ what: String) throws {
            let decision = try verify(payload)
            #expect(decision.summary == "malformed-token", "\(what)")
            #expect(decision.detail?.hasPrefix("The payload is not strict JSON") == true, "\(what)")
        }
        let text = claims.text
        #expect(try verify(Array(text.utf8)).summary == "verified")
        for suffix in ["{}", ",", "x", "}", "\0", text] {
            try expectMalformed(Array((text + suffix).utf8), "before \(suffix)")
        }
        for other in ["\u{FEFF}" + text, String(text.dropLast()), "[\(text)]", "", "null", JSONValue.quoted(text)] {
            try expectMalformed(Array(other.utf8), other)
        }
        // In a claim that is read, and in one that is skipped.
        for name in ["email", "further"] {
            let valid = Array(claims.with(name, "\"~\"").text.utf8)
            #expect(try verify(valid).summary == "verified", "\(name)")
            try expectMalformed(valid.map { $0 == UInt8(ascii: "~") ? 0xFF : $0 }, name)
        }
    }

    @Test(
        "A person has an identifier of 1 to 255 bytes.",
        arguments: [nil, "\"\"", "7", "null", "\"" + String(repeating: "a", count: 256) + "\""]
    )
    func subject(text: String?) throws {
        #expect(try IdentityFixture.decision(on: claims.with("sub", text)).summary == "malformed-token")
        let longest = "\"" + String(repeating: "a", count: 255) + "\""
        #expect(try IdentityFixture.decision(on: claims.with("sub", longest)).summary == "verified")
    }

    // MARK: - Times

    @Test("The token's own time decides: tokens for a day and for ten minutes are accepted for ten minutes.")
    func age() throws {
        let issued = WallTime(seconds: VerifierFixture.issuedAt)
        for lifetime in [600, 86_400] as [Int64] {
            let claims = claims.with("exp", "\(VerifierFixture.issuedAt + lifetime)")
            let last = try IdentityFixture.decision(on: claims, now: issued + .seconds(600))
            #expect(last.summary == "verified")
            let later = try IdentityFixture.decision(on: claims, now: issued + .microseconds(600_000_001))
            #expect(later.summary == "token-too-old")
        }
    }

    @Test("A token expires after the leeway, and one from the future is accepted within it.")
    func times() throws {
        let policy = IdentityPolicy(maximumAge: .seconds(100_000))
        let issued = WallTime(seconds: VerifierFixture.issuedAt)
        let cases: [(Duration, String)] = [
            (.seconds(86_700), "verified"), (.microseconds(86_700_000_001), "expired"), (.seconds(-300), "verified"),
            (.microseconds(-300_000_001), "not-yet-valid"),
        ]
        for (offset, summary) in cases {
            let decision = try IdentityFixture.decision(on: claims, policy: policy, now: issued + offset)
            #expect(decision.summary == summary, "\(offset)")
        }
        let future = claims.with("auth_time", "\(VerifierFixture.issuedAt + 311)")
        #expect(try IdentityFixture.decision(on: future).summary == "not-yet-valid")
    }

    @Test(
        "auth_time may be missing, and must be a time in seconds otherwise.",
        arguments: ["null", "\"1770000000\"", "1770000000.5", "1770000000000", "9223372036854775807", "-1", "0"]
    )
    func malformedAuthenticationTime(text: String) throws {
        #expect(try IdentityFixture.decision(on: claims.with("auth_time", text)).summary == "malformed-token")
    }

    @Test(
        "A token without its times, or with others than seconds, is malformed.",
        arguments: ["iat", "exp"],
        [nil, "null", "\"1770000000\"", "1770000000.5", "1770000000000", "-1"]
    )
    func malformedTimes(claim: String, text: String?) throws {
        #expect(try IdentityFixture.decision(on: claims.with(claim, text)).summary == "malformed-token")
    }

    // MARK: - Code

    @Test("The code of another attempt is refused, and a token without c_hash when a code came with it.")
    func code() throws {
        let (client, nonce) = (IdentityFixture.client, IdentityFixture.nonce)
        let stolen = IdentityExpectation(client: client, nonce: nonce, code: "c00000000000000000000000000000000.0.a.b")
        #expect(try IdentityFixture.decision(on: claims, expecting: stolen).summary == "code-mismatch")
        for text in [nil, "null", "\"\"", "7", JSONValue.quoted(IdentityFixture.hash(IdentityFixture.code) + "=")] {
            #expect(try IdentityFixture.decision(on: claims.with("c_hash", text)).summary == "code-mismatch")
        }
        let none = IdentityExpectation(client: client, nonce: nonce)
        #expect(try IdentityFixture.decision(on: claims, expecting: none).summary == "verified")
        let access = IdentityExpectation(client: client, nonce: nonce, accessToken: "a1")
        #expect(try IdentityFixture.decision(on: claims, expecting: access).summary == "access-token-mismatch")
        let answer = claims.with("at_hash", JSONValue.quoted(IdentityFixture.hash("a1")))
        #expect(try IdentityFixture.decision(on: answer, expecting: access).summary == "verified")
        let other = IdentityExpectation(client: client, nonce: nonce, accessToken: "a2")
        #expect(try IdentityFixture.decision(on: answer, expecting: other).summary == "access-token-mismatch")
    }
}
