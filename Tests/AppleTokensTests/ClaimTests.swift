import AppleTokens
import AppleSimulator
import Basics
import JOSE
import Testing

@Suite struct ClaimTests {
    private static let wrongForStrings = ["null", "true", "1", "1.5", "[]", "{}", "[\"x\"]", "\"\""]
    private static let wrongForNumbers = ["null", "true", "\"1770000000\"", "\"\"", "[]", "{}", "1770000000.5", "[1]"]
    private static let nonsenseNumbers = ["0", "-1", "-1770000000", "1e400", "99999999999999999999", "-1e30"]

    @Test("An issuer of another type is another issuer.", arguments: wrongForStrings)
    func issuer(json: String) throws {
        #expect(try VerifierFixture.set().decision(on: .notification.with("iss", json)).summary == "wrong-issuer")
    }

    @Test("Without an issuer it is another issuer's.")
    func noIssuer() throws {
        #expect(try VerifierFixture.set().decision(on: .notification.with("iss", nil)).summary == "wrong-issuer")
    }

    @Test("An audience of another type is malformed, and an empty one unknown.", arguments: wrongForStrings)
    func audience(json: String) throws {
        let expected = json == "\"\"" ? "unknown-audience" : "malformed-claims"
        #expect(try VerifierFixture.set().decision(on: .notification.with("aud", json)).summary == expected)
    }

    @Test("An audience in an array is malformed: Apple sends one string.")
    func audienceArray() throws {
        let claims = ClaimText.notification.with("aud", "[\"\(VerifierFixture.app)\"]")
        #expect(try VerifierFixture.set().decision(on: claims).summary == "malformed-claims")
    }

    @Test("A missing required claim is malformed.", arguments: ["aud", "iat", "jti"])
    func missing(name: String) throws {
        let letter = try VerifierFixture.set().decision(on: .notification.with(name, nil)).deadLetter
        #expect(letter?.reason == .malformedClaims)
        #expect(letter?.detail.contains("“\(name)”") == true)
    }

    @Test("A missing required member of the event is malformed.", arguments: ["type", "sub", "event_time"])
    func missingMember(name: String) throws {
        let letter = try VerifierFixture.set().decision(on: .notification(of: .event.with(name, nil))).deadLetter
        #expect(letter?.reason == .malformedClaims)
        #expect(letter?.detail.contains("“\(name)”") == true)
    }

    @Test("An id of another type or without characters is malformed.", arguments: wrongForStrings)
    func id(json: String) throws {
        #expect(try VerifierFixture.set().decision(on: .notification.with("jti", json)).summary == "malformed-claims")
    }

    @Test("A subject of another type or without characters is malformed.", arguments: wrongForStrings)
    func subject(json: String) throws {
        #expect(
            try VerifierFixture.set().decision(on: .notification(of: .event.with("sub", json))).summary
                == "malformed-claims"
        )
    }

    @Test("A type of another type is malformed, and an empty one unknown.", arguments: wrongForStrings)
    func type(json: String) throws {
        let expected = json == "\"\"" ? "unknown-event-type" : "malformed-claims"
        #expect(
            try VerifierFixture.set().decision(on: .notification(of: .event.with("type", json))).summary == expected
        )
    }

    @Test("An address of another type or an empty one is malformed, but null is none.", arguments: wrongForStrings)
    func email(json: String) throws {
        let expected = json == "null" ? "verified" : "malformed-claims"
        #expect(
            try VerifierFixture.set().decision(on: .notification(of: .event.with("email", json))).summary == expected
        )
    }

    @Test("iat that is no whole number or out of range is malformed.", arguments: wrongForNumbers + nonsenseNumbers)
    func issuedAt(json: String) throws {
        #expect(try VerifierFixture.set().decision(on: .notification.with("iat", json)).summary == "malformed-claims")
    }

    @Test("event_time that is no time is malformed.", arguments: wrongForNumbers + nonsenseNumbers)
    func eventTime(json: String) throws {
        let claims = ClaimText.notification(of: .event.with("event_time", json))
        #expect(try VerifierFixture.set().decision(on: claims).summary == "malformed-claims")
    }

    @Test("exp that is no whole number or out of range is malformed.", arguments: wrongForNumbers + nonsenseNumbers)
    func expiry(json: String) throws {
        let expected = json == "0" ? "expired" : "malformed-claims"
        #expect(try VerifierFixture.set().decision(on: .notification.with("exp", json)).summary == expected)
    }

    @Test("Ids and subjects may be 256 bytes long and no longer.")
    func lengths() throws {
        let fixture = try VerifierFixture.set()
        for (text, expected) in [
            (String(repeating: "a", count: 256), "verified"), (String(repeating: "a", count: 257), "malformed-claims"),
            (String(repeating: "ä", count: 128), "verified"), (String(repeating: "ä", count: 129), "malformed-claims"),
        ] {
            let json = JSONValue.quoted(text)
            #expect(try fixture.decision(on: .notification.with("jti", json)).summary == expected)
            #expect(try fixture.decision(on: .notification(of: .event.with("sub", json))).summary == expected)
        }
    }

    @Test("An address may be 320 bytes long and no longer, and holds no control character.")
    func addresses() throws {
        let fixture = try VerifierFixture.set()
        for (text, expected) in [
            (String(repeating: "a", count: 320), "verified"), (String(repeating: "a", count: 321), "malformed-claims"),
            ("ä@example.com", "verified"), ("a@b\n", "malformed-claims"), ("a\u{1F}@b", "malformed-claims"),
            ("a\u{7F}@b", "malformed-claims"), ("a\u{85}@b", "malformed-claims"), ("no address", "verified"),
        ] {
            let claims = ClaimText.notification(of: .event.with("email", JSONValue.quoted(text)))
            #expect(try fixture.decision(on: claims).summary == expected, "\(text)")
        }
    }

    @Test("An overlong value is cut in the dead letter.")
    func cut() throws {
        let long = String(repeating: "a", count: 5_000)
        let letter = try VerifierFixture.set().decision(on: .notification.with("jti", "\"\(long)\"")).deadLetter
        #expect(letter?.notificationID == String(repeating: "a", count: 256))
    }
}

@Suite struct ClaimTimeTests {
    private let leeway = Duration.seconds(VerifierFixture.leeway)

    @Test("A token is valid until exactly the leeway after exp.")
    func expiry() throws {
        let fixture = try VerifierFixture.set()
        let last = WallTime(seconds: VerifierFixture.issuedAt + 86_400) + leeway
        #expect(try fixture.decision(on: .notification, now: last).summary == "verified")
        #expect(try fixture.decision(on: .notification, now: last + .microseconds(1)).summary == "expired")
    }

    @Test("iat may be in the future by exactly the leeway.")
    func issuedAt() throws {
        let fixture = try VerifierFixture.set()
        let first = WallTime(seconds: VerifierFixture.issuedAt) - leeway
        #expect(try fixture.decision(on: .notification, now: first).summary == "verified")
        #expect(try fixture.decision(on: .notification, now: first - .microseconds(1)).summary == "not-yet-valid")
    }

    @Test("event_time may be in the future by exactly the leeway.")
    func eventTime() throws {
        let fixture = try VerifierFixture.set()
        let claims = ClaimText.notification(of: .event.with("event_time", "\(VerifierFixture.issuedAt * 1_000 + 500)"))
        let first = WallTime(milliseconds: VerifierFixture.issuedAt * 1_000 + 500) - leeway
        #expect(try fixture.decision(on: claims, now: first).summary == "verified")
        #expect(try fixture.decision(on: claims, now: first - .microseconds(1)).summary == "not-yet-valid")
    }

    @Test("An event of the far future is not yet valid, and beyond 2200 it is nonsense.")
    func farFuture() throws {
        let fixture = try VerifierFixture.set()
        for (number, expected) in [
            ("1800000000", "not-yet-valid"), ("7258118399", "not-yet-valid"), ("7258118400", "malformed-claims"),
            ("7258118399999", "not-yet-valid"), ("7258118400000", "malformed-claims"),
            ("99999999999", "malformed-claims"), ("9223372036854775807", "malformed-claims"),
        ] {
            let claims = ClaimText.notification(of: .event.with("event_time", number))
            #expect(try fixture.decision(on: claims).summary == expected, "\(number)")
        }
    }

    @Test("An event before 2008 is nonsense, in either unit.")
    func farPast() throws {
        let fixture = try VerifierFixture.set()
        for (number, expected) in [
            ("1199145600", "verified"), ("1199145599", "malformed-claims"), ("1199145600000", "verified"),
            ("1199145599999", "malformed-claims"), ("100000000000", "malformed-claims"),
        ] {
            let claims = ClaimText.notification(of: .event.with("event_time", number))
            #expect(try fixture.decision(on: claims).summary == expected, "\(number)")
        }
    }

    @Test("iat in milliseconds is nonsense rather than the year 58,000.")
    func milliseconds() throws {
        let claims = ClaimText.notification.with("iat", "\(VerifierFixture.issuedAt * 1_000)")
        #expect(try VerifierFixture.set().decision(on: claims).summary == "malformed-claims")
    }

    @Test("Without leeway the times count to the microsecond.")
    func noLeeway() throws {
        let fixture = try VerifierFixture.set()
        let policy = NotificationPolicy(audiences: fixture.policy.audiences, leeway: .zero)
        let verifier = NotificationVerifier(policy: policy)
        let token = Array(try fixture.apple.token(claims: ClaimText.notification.text).utf8)
        let issued = WallTime(seconds: VerifierFixture.issuedAt)
        let expires = WallTime(seconds: VerifierFixture.issuedAt + 86_400)
        for (now, expected) in [
            (issued, "verified"), (issued - .microseconds(1), "not-yet-valid"), (expires, "verified"),
            (expires + .microseconds(1), "expired"),
        ] {
            #expect(verifier.verify(token: token, keys: fixture.keys, now: now).summary == expected)
        }
    }

    @Test("Arithmetic with the first and the last time does not trap.")
    func endsOfTime() throws {
        let fixture = try VerifierFixture.set()
        #expect(try fixture.decision(on: .notification, now: WallTime(microseconds: .max)).summary == "expired")
        #expect(try fixture.decision(on: .notification, now: WallTime(microseconds: .min)).summary == "not-yet-valid")
    }
}
