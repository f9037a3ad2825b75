import AppleSimulator
import JOSE
import Testing

@Suite struct SimulatedAppleTests {
    private static let made = Result { try SimulatedApple.generate() }

    private func event(type: String, email: String? = nil, isPrivateEmail: Bool? = nil) -> SimulatedEvent {
        SimulatedEvent(
            type: type,
            sub: "000768.6166f031167141e695698239959f591a.1521",
            app: "jp.yauth.signin.app",
            email: email,
            isPrivateEmail: isPrivateEmail,
            eventTime: 1_657_617_063_012,
            issuedAt: 1_657_617_092,
            id: "S25cB0PbHs6y97gYYmgydQ"
        )
    }

    @Test("Header and claims have the same bytes as a real notification of July 2022.")
    func realShape() throws {
        let apple = try SimulatedApple(key: Self.made.get().key, keyID: "fh6Bs8C")
        let token = try apple.token(for: event(type: "consent-revoked")).split(separator: ".")
        let header = "eyJraWQiOiJmaDZCczhDIiwiYWxnIjoiUlMyNTYifQ"
        let claims =
            "eyJpc3MiOiJodHRwczovL2FwcGxlaWQuYXBwbGUuY29tIiwiYXVkIjoianAueWF1dGguc2lnbmluLmFwcCIsImV4cCI6MTY1NzcwMzQ5Miwi"
            + "aWF0IjoxNjU3NjE3MDkyLCJqdGkiOiJTMjVjQjBQYkhzNnk5N2dZWW1neWRRIiwiZXZlbnRzIjoie1widHlwZVwiOlwiY29uc2VudC1yZXZv"
            + "a2VkXCIsXCJzdWJcIjpcIjAwMDc2OC42MTY2ZjAzMTE2NzE0MWU2OTU2OTgyMzk5NTlmNTkxYS4xNTIxXCIsXCJldmVudF90aW1lXCI6MTY1"
            + "NzYxNzA2MzAxMn0ifQ"
        #expect(token[0] == header)
        #expect(token[1] == claims)
        #expect(token.count == 3)
    }

    @Test("A token is signed with the key that the key set publishes under its name.")
    func signature() throws {
        let apple = try Self.made.get()
        let set = try JSONWebKeySet(parsing: Array(apple.keySetJSON.utf8))
        let token = try CompactJWS(parsing: Array(apple.token(for: event(type: "account-deleted")).utf8))
        let key = try #require(set.keys.first { $0.keyID == apple.keyID })
        #expect(set.ignored.isEmpty)
        #expect(token.keyID == apple.keyID)
        #expect(try RSAVerifier(key.publicKey).isValid(token))
        #expect(apple.keys == [key])
    }

    @Test("The name of a key is made from the key, so that its PEM alone gives the same name.")
    func keyID() throws {
        let apple = try Self.made.get()
        let again = try SimulatedApple(key: RSAPrivateKey(pem: apple.key.pem()))
        #expect(apple.keyID.count == 10)
        #expect(apple.key.publicKey.thumbprint.hasPrefix(apple.keyID))
        #expect(again.keyID == apple.keyID)
        #expect(again.keySetJSON == apple.keySetJSON)
    }

    @Test("An event about email carries the address, and its privacy as a string.")
    func email() {
        let disabled = event(type: "email-disabled", email: "a\"b@privaterelay.appleid.com", isPrivateEmail: true)
        #expect(
            disabled.eventObject
                == #"{"type":"email-disabled","sub":"000768.6166f031167141e695698239959f591a.1521","#
                + #""email":"a\"b@privaterelay.appleid.com","is_private_email":"true","event_time":1657617063012}"#
        )
        #expect(event(type: "x", isPrivateEmail: false).eventObject.contains(#""is_private_email":"false""#))
    }

    @Test("events can be any JSON, for receivers that must bear it.")
    func otherEvents() throws {
        let object = event(type: "account-delete")
        let claims = try JSONValue(parsing: Array(object.claims(issuer: "i", events: object.eventObject).utf8))
        #expect(claims["events"]?["type"]?.string == "account-delete")
        #expect(claims["exp"]?.integer == 1_657_703_492)
    }

    @Test("Random ids and subjects have Apple's format and differ.")
    func madeUp() {
        let ids = Set((0..<100).map { _ in SimulatedEvent.randomID() })
        #expect(ids.count == 100)
        #expect(ids.allSatisfy { $0.count == 22 && (try? Base64URL.decode($0).count) == 16 })
        let subjects = Set((0..<100).map { _ in SimulatedEvent.randomSubject() })
        #expect(subjects.count == 100)
        #expect(subjects.allSatisfy { $0.split(separator: ".").map(\.count) == [6, 32, 4] })
    }

    @Test("Claims and header of any text are signed as they are.")
    func anyText() throws {
        let apple = try Self.made.get()
        let token = try apple.token(claims: "not JSON", header: apple.header)
        #expect(try CompactJWS(parsing: Array(token.utf8)).payload == Array("not JSON".utf8))
        let odd = try apple.token(claims: "{}", header: "{\"alg\":\"none\"}")
        #expect(try JWSHeader(ofToken: Array(odd.utf8)).algorithm == "none")
    }

    @Test("An identity token has no events.")
    func identityToken() throws {
        let token = try Self.made.get().identityToken(sub: "s", app: "com.example.app", issuedAt: 1_657_617_092)
        let claims = try JSONValue(parsing: CompactJWS(parsing: Array(token.utf8)).payload)
        #expect(claims["events"] == nil)
        #expect(claims["aud"]?.string == "com.example.app")
        #expect(claims["exp"]?.integer == 1_657_703_492)
    }

    @Test("A body is the JSON object that Apple sends.")
    func body() {
        #expect(SimulatedApple.body(token: "a.b.c") == #"{"payload":"a.b.c"}"#)
    }
}
