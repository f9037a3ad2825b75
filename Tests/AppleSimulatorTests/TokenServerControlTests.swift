import AppleSimulator
import JOSE
import Testing

@Suite("The control of the simulated Apple")
struct TokenServerControlTests {
    @Test("A device gets an identity token with c_hash, a code, and at the first sign-in the name.")
    func signIn() throws {
        var fixture = try Fixture()
        let first = try fixture.control(.signIn, #"{"client_id":"com.example.app","nonce":"n","hide_email":true}"#)
        let code = try #require(first["authorizationCode"]?.string)
        let token = try CompactJWS(parsing: Array(try #require(first["identityToken"]?.string).utf8))
        let claims = try JSONValue(parsing: token.payload)
        #expect(try RSAVerifier(Fixture.apple.get().key.publicKey).isValid(token))
        #expect(claims["c_hash"]?.string == TokenHash.of(code))
        #expect(claims["at_hash"] == nil && claims["nonce"]?.string == "n")
        #expect(claims["is_private_email"] == .boolean(true) && claims["email_verified"] == .boolean(true))
        #expect(claims["real_user_status"]?.integer == 2)
        #expect(first["user"]?["name"]?["firstName"]?.string == "Ada")
        let again = try fixture.control(.signIn, #"{"client_id":"com.example.web"}"#)
        #expect(again["user"] == .null)
        _ = try fixture.control(.stopUsing, #"{"client_id":"com.example.app"}"#)
        #expect(try fixture.control(.signIn, #"{"client_id":"com.example.web"}"#)["user"] != .null)
    }

    @Test("At a first sign-in on the web, no token says whether the person is real.")
    func firstOnTheWeb() throws {
        var fixture = try Fixture()
        let uri = "https://example.com/callback"
        let body = #"{"client_id":"com.example.web","redirect_uri":"\#(uri)"}"#
        let device = try fixture.control(.signIn, body)
        let token = try CompactJWS(parsing: Array(try #require(device["identityToken"]?.string).utf8))
        #expect(device["user"] != .null)
        #expect(try JSONValue(parsing: token.payload)["real_user_status"] == nil)
        let code = try #require(device["authorizationCode"]?.string)
        let client = ["client_id": "com.example.web", "client_secret": Fixture.secret(client: "com.example.web")]
        let answer = try fixture.trade(code, client.merging(["redirect_uri": uri]) { $1 })
        #expect(answer.status == 200)
        #expect(try answer.claims()["real_user_status"] == nil)
    }

    @Test("Addresses of the relay are in both of its domains, and the flag says that they are private.")
    func relayDomains() throws {
        var fixture = try Fixture()
        let domains = try ["ada", "ben", "cleo", "dan"].map { name in
            let body = #"{"client_id":"com.example.app","hide_email":true,"person":"\#(name)"}"#
            let code = try #require(try fixture.control(.signIn, body)["authorizationCode"]?.string)
            let claims = try fixture.trade(code).claims()
            #expect(claims["is_private_email"] == .boolean(true))
            return try #require(claims["email"]?.string?.split(separator: "@").last.map(String.init))
        }
        #expect(Set(domains) == ["private.icloud.com", "privaterelay.appleid.com"])
        #expect(domains.first == "private.icloud.com")
    }

    @Test("Flags are text or booleans.")
    func flags() throws {
        var fixture = try Fixture()
        _ = try fixture.control(.behave, #"{"flags":"text"}"#)
        #expect(try fixture.trade(try fixture.code()).claims()["email_verified"] == .string("true"))
    }

    @Test("Apple notifies each app group that the person uses.")
    func notifications() throws {
        var fixture = try Fixture()
        _ = try fixture.control(.signIn, #"{"client_id":"com.example.web","hide_email":true}"#)
        _ = try fixture.control(.signIn, #"{"client_id":"com.example.other"}"#)
        let off = try fixture.events(.forwarding, #"{"on":false}"#).events
        #expect(off.map(\.type) == ["email-disabled"] && off.map(\.app) == ["com.example.app"])
        #expect(off.first?.isPrivateEmail == true)
        #expect(try fixture.events(.forwarding, #"{"on":true}"#).events.map(\.type) == ["email-enabled"])
        #expect(try fixture.events(.changePassword).events.isEmpty)
        let stopped = try fixture.events(.stopUsing, #"{"client_id":"com.example.web"}"#)
        #expect(stopped.events.map(\.type) == ["consent-revoked"] && stopped.sendsEvents)
        #expect(stopped.events.first?.eventTime == Fixture.now)
        _ = try fixture.control(.loseNotifications)
        let deleted = try fixture.events(.deleteAccount)
        #expect(deleted.events.map(\.type) == ["account-deleted"] && !deleted.sendsEvents)
        #expect(throws: ControlError.self) { try fixture.control(.signIn, #"{"client_id":"com.example.app"}"#) }
    }

    @Test("The error about an unknown person names the next step, and says that a restart forgets people.")
    func unknownPerson() throws {
        var fixture = try Fixture()
        let error = #expect(throws: ControlError.self) {
            try fixture.control(.stopUsing, #"{"client_id":"com.example.app"}"#)
        }
        #expect(
            error?.description
                == "ada is no person here: let the person sign in first; the simulated Apple forgets its people when it "
                + "restarts"
        )
    }

    @Test("A behaviour lasts for its number of requests.")
    func behaviour() throws {
        var fixture = try Fixture()
        let code = try fixture.code()
        _ = try fixture.control(.behave, #"{"status":503,"body":"{}","times":2}"#)
        _ = try fixture.control(.behave, #"{"retry_after":7}"#)
        for _ in 0..<2 { #expect(try fixture.trade(code) == SimulatedResponse(status: 503, body: "{}")) }
        #expect(try fixture.trade(code) == SimulatedResponse(status: 429, retryAfter: 7))
        _ = try fixture.control(.behave, #"{"cut":true,"delay_ms":5}"#)
        let cut = try fixture.trade(code)
        #expect(cut.isCut && cut.delay == 5 && cut.status == 200)
        // The code was used up, although its answer got lost.
        #expect(try fixture.trade(code).value["error_description"]?.string == "The code has already been used.")
        _ = try fixture.control(.behave, #"{"endpoint":"keys","status":500}"#)
        #expect(try fixture.server.respond(to: .keys, nil, at: fixture.now).status == 500)
        #expect(try fixture.server.respond(to: .keys, nil, at: fixture.now).body == fixture.server.keySetJSON)
    }

    @Test("A response can be of any size and type and lead elsewhere; a dropped request is not processed.")
    func responses() throws {
        var fixture = try Fixture()
        let code = try fixture.code()
        _ = try fixture.control(.behave, #"{"body":"{}","size":1048576}"#)
        let large = try fixture.trade(code)
        #expect(large.status == 200 && large.body.utf8.count == 1_048_576 && large.value.members?.isEmpty == true)
        _ = try fixture.control(.behave, #"{"location":"https://example.com/"}"#)
        let redirect = try fixture.trade(code)
        #expect(redirect.status == 302 && redirect.location == "https://example.com/")
        _ = try fixture.control(.behave, #"{"content_type":"text/html; charset=UTF-16","body":"<html>","status":403}"#)
        let page = try fixture.trade(code)
        #expect(page.status == 403 && page.contentType == "text/html; charset=UTF-16" && page.body == "<html>")
        _ = try fixture.control(.behave, #"{"drop":true}"#)
        let dropped = try fixture.trade(code)
        #expect(dropped == .dropped && dropped.isCut && dropped.body.isEmpty)
        #expect(try fixture.trade(code).status == 200)
        let requests = try #require(try fixture.control(.log)["requests"]?.array)
        #expect(requests.suffix(2).map { $0["status"] } == [.null, .number(JSONNumber(200))])
    }

    @Test("A token can be about another person or have another hash.")
    func tampering() throws {
        var fixture = try Fixture()
        let subject = try fixture.control(.signIn, #"{"client_id":"com.example.app"}"#)["sub"]?.string
        _ = try fixture.control(.behave, #"{"tamper":"sub"}"#)
        #expect(try fixture.trade(try fixture.code()).claims()["sub"]?.string != subject)
        _ = try fixture.control(.behave, #"{"tamper":"at_hash"}"#)
        let other = try fixture.trade(try fixture.code())
        #expect(try other.claims()["at_hash"]?.string != TokenHash.of(other.value["access_token"]?.string ?? ""))
        #expect(try other.claims()["sub"]?.string == subject)
    }

    @Test("A new key signs, and the old ones stay published; of more than three, the first one and the last two.")
    func rotation() throws {
        var fixture = try Fixture()
        let first = try Fixture.apple.get().keyID
        for count in [2, 3, 3, 3] {
            let before = try JSONWebKeySet(parsing: Array(fixture.server.keySetJSON.utf8)).keys.last?.keyID
            _ = try fixture.control(.behave, #"{"rotate_keys":true}"#)
            let set = try JSONWebKeySet(parsing: Array(fixture.server.keySetJSON.utf8))
            #expect(set.keys.count == count)
            #expect(set.keys.first?.keyID == first && set.keys.dropLast().last?.keyID == before)
            let token = try #require(try fixture.trade(try fixture.code()).value["id_token"]?.string)
            #expect(try JWSHeader(ofToken: Array(token.utf8)).keyID == set.keys.last?.keyID)
        }
    }

    @Test("Of three published keys the first one never signs, and the key of the start stays published.")
    func otherKeys() throws {
        let apple = try Fixture.apple.get()
        var server = TokenServer(apple: apple, others: try SimulatedApple.others())
        for round in 0..<5 {
            let names = try JSONWebKeySet(parsing: Array(server.keySetJSON.utf8)).keys.map(\.keyID)
            #expect(Set(names).count == 3 && names.contains(apple.keyID))
            let device = try server.perform(.signIn, Array(#"{"client_id":"a"}"#.utf8), at: Fixture.now).response
            let token = try #require(device["identityToken"]?.string)
            let signer = try JWSHeader(ofToken: Array(token.utf8)).keyID
            #expect(signer == names.last)
            // Other commands sign with its file, and earlier key sets have no other key.
            #expect(round > 0 || signer == apple.keyID)
            _ = try server.perform(.behave, Array(#"{"rotate_keys":true}"#.utf8), at: Fixture.now)
        }
    }

    @Test("The log has no secrets, and reset empties everything but the keys.")
    func log() throws {
        var fixture = try Fixture()
        let code = try fixture.code()
        let response = try fixture.trade(code)
        _ = try fixture.trade(code)
        let log = try fixture.control(.log)
        #expect(log["requests"]?.array?.map { $0["status"]?.integer } == [200, 400])
        #expect(log["requests"]?.array?.last?["error"]?.string == "invalid_grant")
        #expect(!log.compactText.contains(code) && !log.compactText.contains(Fixture.secret()))
        let refresh = try #require(response.value["refresh_token"]?.string)
        #expect(!log.compactText.contains(refresh))
        let keys = fixture.server.keySetJSON
        _ = try fixture.control(.reset)
        #expect(try fixture.control(.log)["requests"]?.array?.isEmpty == true)
        #expect(fixture.server.keySetJSON == keys)
        #expect(try fixture.trade(code) == notValidCode)
    }

    @Test("A reset keeps every published key, and the key that signs.")
    func resetAfterRotation() throws {
        var fixture = try Fixture()
        for _ in 0..<4 { _ = try fixture.control(.behave, #"{"rotate_keys":true}"#) }
        let keys = fixture.server.keySetJSON
        let signer = try #require(fixture.server.signers.last).keyID
        let first = try Fixture.apple.get().keyID
        #expect(keys.contains(first))
        _ = try fixture.control(.reset)
        #expect(fixture.server.keySetJSON == keys)
        let token = try #require(try fixture.trade(try fixture.code()).value["id_token"]?.string)
        #expect(try JWSHeader(ofToken: Array(token.utf8)).keyID == signer)
    }

    @Test("The clock goes forward by what advance names, and back at a reset.")
    func clock() throws {
        var fixture = try Fixture()
        _ = try fixture.control(.advance, #"{"seconds":90}"#)
        #expect(fixture.server.milliseconds(Fixture.now) == Fixture.now + 90_000)
        _ = try fixture.control(.reset)
        #expect(fixture.server.milliseconds(Fixture.now) == Fixture.now)
    }

    @Test("After the lifetime of the client secret, the secret is refused before the age of the code is looked at.")
    func secretBeforeAge() throws {
        var fixture = try Fixture()
        let (old, code) = (try fixture.code(#","age":300"#), try fixture.code())
        #expect(try fixture.trade(old) == notValidCode)
        _ = try fixture.control(.advance, #"{"seconds":300}"#)
        #expect(try fixture.trade(code) == .refusal("invalid_client"))
    }

    @Test(
        "A member of behave that would be ignored is refused, with what to write.",
        arguments: [
            ("", "add delay_ms"), ("{}", "add delay_ms"), (#"{"cut":false,"rotate_keys":false}"#, "add delay_ms"),
            (#"{"times":2}"#, "need an effect"), (#"{"endpoint":"keys"}"#, "need an effect"),
            (#"{"times":2,"rotate_keys":true}"#, "need an effect"),
            (#"{"times":2,"repeat_code":true}"#, "need an effect"),
            (#"{"endpoint":"token","flags":"text"}"#, "need an effect"),
            (#"{"endpoint":"keys","tamper":"sub"}"#, "leave endpoint out"),
            (#"{"endpoint":"revoke","tamper":"at_hash"}"#, "leave endpoint out"),
        ]
    )
    func ignoredMembers(_ body: String, _ advice: String) throws {
        var fixture = try Fixture()
        let (keys, code) = (fixture.server.keySetJSON, try fixture.code())
        let error = #expect(throws: ControlError.self) { try fixture.control(.behave, body) }
        let refusal = try #require(error)
        #expect(refusal.description.contains(advice), "\(refusal)")
        #expect(fixture.server.keySetJSON == keys)
        #expect(try fixture.code() != code)
        #expect(try fixture.trade(code).claims()["email_verified"] == .boolean(true))
    }

    @Test(
        "Each effect of behave needs no other member.",
        arguments: [
            #"{"delay_ms":1}"#, #"{"status":503}"#, #"{"body":""}"#, #"{"size":1}"#, #"{"content_type":"a/b"}"#,
            #"{"location":"/"}"#, #"{"retry_after":1}"#, #"{"cut":true}"#, #"{"drop":true}"#, #"{"tamper":"sub"}"#,
            #"{"rotate_keys":true}"#, #"{"repeat_code":false}"#, #"{"flags":"boolean"}"#,
            #"{"endpoint":"token","tamper":"sub","times":2}"#, #"{"endpoint":"keys","delay_ms":0,"times":2}"#,
            #"{"status":503,"times":2,"rotate_keys":true}"#,
        ]
    )
    func singleEffects(_ body: String) throws {
        var fixture = try Fixture()
        #expect(try fixture.control(.behave, body) == .object([]))
    }

    @Test(
        "A control request that is not understood changes nothing and says why.",
        arguments: [
            (TokenServer.Control.signIn, "{"), (.signIn, "[]"), (.signIn, "{}"), (.signIn, #"{"client_id":1}"#),
            (.signIn, #"{"client_id":"com.example.app","nonse":"x"}"#),
            (.signIn, #"{"client_id":"com.example.none"}"#),
            (.signIn, #"{"client_id":"com.example.app","person":"a b"}"#),
            (.signIn, #"{"client_id":"com.example.app","age":-1}"#),
            (.signIn, #"{"client_id":"com.example.app","real_user_status":3}"#),
            (.stopUsing, #"{"client_id":"com.example.app","person":"bob"}"#), (.deleteAccount, #"{"person":"bob"}"#),
            (.advance, "{}"), (.advance, #"{"seconds":-1}"#), (.behave, #"{"endpoint":"x"}"#),
            (.behave, #"{"status":503,"cut":true}"#), (.behave, #"{"drop":true,"tamper":"sub"}"#),
            (.behave, #"{"size":16777217}"#), (.behave, #"{"location":"a\nb"}"#), (.behave, #"{"tamper":"x"}"#),
            (.behave, #"{"times":0}"#),
            (.reset, #"{"a":1}"#), (.log, #"{"a":1}"#), (.forwarding, #"{"on":"yes"}"#),
        ]
    )
    func refused(_ control: TokenServer.Control, _ body: String) throws {
        var fixture = try Fixture()
        #expect(throws: ControlError.self) { try fixture.control(control, body) }
    }

    @Test(
        "With strict, only redirect URIs are accepted that Apple registers.",
        arguments: [
            ("https://example.com/a", true), ("https://example.com:8443/", true), ("http://example.com/", false),
            ("https://localhost/", false), ("https://127.0.0.1/", false), ("https://[::1]/", false),
            ("https://example..com/", false),
        ]
    )
    func strict(_ uri: String, _ isAccepted: Bool) throws {
        let body = #"{"client_id":"com.example.app","redirect_uri":"\#(uri)"}"#
        var fixture = try Fixture(isStrict: true)
        if isAccepted {
            #expect(try fixture.control(.signIn, body)["authorizationCode"] != nil)
        } else {
            #expect(throws: ControlError.self) { try fixture.control(.signIn, body) }
        }
    }
}
