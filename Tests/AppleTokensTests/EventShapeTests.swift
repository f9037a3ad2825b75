import AppleTokens
import AppleSimulator
import Basics
import JOSE
import Testing

@Suite struct EventShapeTests {
    @Test(
        "Every event type is verified with what it says.",
        arguments: [
            ("email-disabled", .emailDisabled), ("email-enabled", .emailEnabled), ("consent-revoked", .consentRevoked),
            ("account-deleted", .accountDeleted), ("account-delete", .accountDeleted),
        ] as [(String, AccountEvent.Kind)]
    )
    func types(type: String, kind: AccountEvent.Kind) throws {
        let fixture = try VerifierFixture.set()
        let event = SimulatedEvent(
            type: type,
            sub: "000768.6166f031167141e695698239959f591a.1521",
            app: VerifierFixture.app,
            email: kind.isAboutEmail ? "abc123@privaterelay.appleid.com" : nil,
            isPrivateEmail: kind.isAboutEmail ? true : nil,
            eventTime: VerifierFixture.eventTime,
            issuedAt: VerifierFixture.issuedAt,
            id: "S25cB0PbHs6y97gYYmgydQ"
        )
        let token = try fixture.apple.token(for: event)
        let expected = VerifiedNotification(
            id: NotificationID("S25cB0PbHs6y97gYYmgydQ"),
            issuedAt: WallTime(seconds: VerifierFixture.issuedAt),
            expiresAt: WallTime(seconds: VerifierFixture.issuedAt + 86_400),
            team: TeamID("A1B2C3D4E5"),
            app: AppID(VerifierFixture.app),
            audience: VerifierFixture.app,
            event: AccountEvent(
                kind: kind,
                rawType: type,
                subject: Subject(event.sub),
                time: WallTime(milliseconds: VerifierFixture.eventTime),
                email: event.email,
                emailIsPrivate: event.isPrivateEmail
            ),
            keyID: fixture.apple.keyID,
            token: Array(token.utf8)
        )
        #expect(fixture.decision(on: token) == .verified(expected))
    }

    @Test("The one event is found in every spelling of events.")
    func spellings() throws {
        let fixture = try VerifierFixture.set()
        let event = ClaimText.event.text
        let spellings = [
            JSONValue.quoted(event), event, "[\(event)]", " [ \(event) ] ", JSONValue.quoted("[\(event)]"),
            JSONValue.quoted(" \(event)\n"), "[\(JSONValue.quoted(event))]", "[ \(JSONValue.quoted("[\(event)]")) ]",
        ]
        let expected = try fixture.decision(on: ClaimText.notification).notification?.event
        #expect(expected != nil)
        for spelling in spellings {
            let decision = try fixture.decision(on: .notification.with("events", spelling))
            #expect(decision.notification?.event == expected, "\(spelling)")
        }
    }

    @Test("Anything but exactly one event is a dead letter.")
    func counts() throws {
        let fixture = try VerifierFixture.set()
        let event = ClaimText.event.text
        let shapes = [
            "[]", "[\(event),\(event)]", "[[\(event)]]", "[null]", "null", "true", "1", "[\"\"]", "[\"x\"]", "[\"[]\"]",
            "[\(JSONValue.quoted(event)),\(JSONValue.quoted(event))]", "[\(JSONValue.quoted(event)),\(event)]",
            "[\(event),\(JSONValue.quoted(event))]", "[\(JSONValue.quoted(JSONValue.quoted(event)))]",
            JSONValue.quoted("[\(JSONValue.quoted(event))]"), "[\(JSONValue.quoted("[\(JSONValue.quoted(event))]"))]",
            "\"\"", "\"x\"", "\"1\"", "\"null\"", "\"[]\"", JSONValue.quoted("[\(event),\(event)]"),
            JSONValue.quoted(JSONValue.quoted(event)), JSONValue.quoted(event + "x"), JSONValue.quoted("{\"type\":}"),
            JSONValue.quoted("\u{FEFF}\(event)"), "{}", "[{}]", "\"{}\"",
        ]
        for shape in shapes {
            let decision = try fixture.decision(on: .notification.with("events", shape))
            #expect(decision.summary == "malformed-claims", "\(shape)")
        }
    }

    @Test("A member that comes twice makes the event unreadable in every spelling.")
    func duplicates() throws {
        let fixture = try VerifierFixture.set()
        let event = String(ClaimText.event.text.dropLast()) + ",\"sub\":\"another\"}"
        for spelling in [JSONValue.quoted(event), event, "[\(JSONValue.quoted(event))]", "[\(event)]"] {
            let decision = try fixture.decision(on: .notification.with("events", spelling))
            #expect(decision.summary == "malformed-claims", "\(spelling)")
        }
    }

    @Test("The time of an event is read in milliseconds and in seconds.")
    func times() throws {
        let fixture = try VerifierFixture.set()
        for (number, time) in [
            ("1769999990", WallTime(seconds: 1_769_999_990)), ("1.76999999e9", WallTime(seconds: 1_769_999_990)),
            ("1769999990123", WallTime(milliseconds: 1_769_999_990_123)),
        ] {
            let claims = ClaimText.notification(of: .event.with("event_time", number))
            #expect(try fixture.decision(on: claims).notification?.event.time == time)
        }
    }

    @Test(
        "Whether an address is private is read from a string or a boolean, and anything else says nothing.",
        arguments: [
            ("\"true\"", true), ("true", true), ("\"false\"", false), ("false", false), ("\"yes\"", nil), ("1", nil),
            ("null", nil), ("{}", nil), ("[true]", nil), ("\"True\"", nil), (nil, nil),
        ] as [(String?, Bool?)]
    )
    func privacy(json: String?, expected: Bool?) throws {
        let decision = try VerifierFixture.set().decision(on: .notification(of: .event.with("is_private_email", json)))
        let event = try #require(decision.notification?.event)
        #expect(event.emailIsPrivate == expected)
        #expect(event.email == "abc123@privaterelay.appleid.com")
    }

    @Test("An event about email may come without an address, and then says nothing about its privacy.")
    func noAddress() throws {
        let fixture = try VerifierFixture.set()
        for json in [nil, "null"] {
            let event = try #require(
                try fixture.decision(on: .notification(of: .event.with("email", json))).notification?.event
            )
            #expect(event.email == nil)
            #expect(event.emailIsPrivate == nil)
        }
    }

    @Test("An address in another event is ignored, whatever it is.", arguments: ["\"a@example.com\"", "1", "\"\""])
    func ignoredAddress(json: String) throws {
        let event = ClaimText.event.with("type", "\"account-deleted\"").with("email", json)
        let found = try #require(try VerifierFixture.set().decision(on: .notification(of: event)).notification?.event)
        #expect(found.email == nil)
        #expect(found.emailIsPrivate == nil)
    }

    @Test("Unknown members are skipped.")
    func unknownMembers() throws {
        let fixture = try VerifierFixture.set()
        let event = ClaimText.event.with("nonce", "{\"a\":[1,2,{}]}").with("x", "null")
        let claims = ClaimText.notification(of: event).with("sub", "\"x\"").with("nbf", "9999999999")
        #expect(try fixture.decision(on: claims).summary == "verified")
    }

    @Test("An aud that is a further client id of the group leads to the group.")
    func furtherClient() throws {
        let decision = try VerifierFixture.set().decision(on: .notification.with("aud", "\"com.example.web\""))
        #expect(decision.notification?.app == AppID("com.example.app"))
        #expect(decision.notification?.audience == "com.example.web")
    }

    @Test("Without exp a notification is valid for a day, as in the documentation's sample.")
    func noExpiry() throws {
        let fixture = try VerifierFixture.set()
        let claims = ClaimText.notification.with("exp", nil)
        let end = WallTime(seconds: VerifierFixture.issuedAt + 86_400)
        #expect(try fixture.decision(on: claims).notification?.expiresAt == end)
        let last = end + .seconds(VerifierFixture.leeway)
        #expect(try fixture.decision(on: claims, now: last).summary == "verified")
        let late = try #require(try fixture.decision(on: claims, now: last + .microseconds(1)).deadLetter)
        #expect(late.reason == .expired)
        #expect(late.detail == "It arrived more than a day after the time in its claim “iat”, and has no “exp”.")
        let dated = try #require(try fixture.decision(on: .notification, now: last + .microseconds(1)).deadLetter)
        #expect(dated.detail == "It arrived after the time in its claim “exp”.")
    }
}
