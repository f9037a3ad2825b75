import AppleSimulator
import JOSE
import Testing

/// A simulated Apple at a fixed time, with two clients of one app group and one of another team.
private struct Fixture {
    static let now: Int64 = 1_700_000_000_000
    static let seconds = now / 1_000
    static let apple = Result { try SimulatedApple.generate() }

    var server: TokenServer
    var now = Self.now

    init(isStrict: Bool = false, keys: [ClientSecretCheck.Key] = []) throws {
        let clients = [
            TokenServer.Client(id: "com.example.app", team: "TEAM567890", app: "com.example.app"),
            TokenServer.Client(id: "com.example.web", team: "TEAM567890", app: "com.example.app"),
            TokenServer.Client(id: "com.example.other", team: "OTHER67890", app: "com.example.other"),
        ]
        server = TokenServer(
            apple: try Self.apple.get(),
            clients: clients,
            secrets: ClientSecretCheck(keys: keys),
            isStrict: isStrict
        )
    }

    static func secret(
        client: String = "com.example.app",
        header: String = #"{"alg":"ES256","kid":"KEY4567890"}"#,
        team: String = "TEAM567890",
        audience: String = "https://appleid.apple.com",
        issuedAt: Int64 = seconds,
        expiry: Int64 = seconds + 300,
        signature: Int = 64
    ) -> String {
        let claims =
            #"{"iss":"\#(team)","iat":\#(issuedAt),"exp":\#(expiry),"aud":"\#(audience)","sub":"\#(client)"}"#
        return [Array(header.utf8), Array(claims.utf8), [UInt8](repeating: 7, count: signature)]
            .map(Base64URL.encode).joined(separator: ".")
    }

    mutating func control(_ control: TokenServer.Control, _ body: String = "") throws -> JSONValue {
        try server.perform(control, Array(body.utf8), at: now).response
    }

    mutating func events(_ control: TokenServer.Control, _ body: String = "") throws -> ControlAnswer {
        try server.perform(control, Array(body.utf8), at: now)
    }

    /// Signs ada in at com.example.app.
    mutating func code(_ members: String = "") throws -> String {
        let answer = try control(.signIn, #"{"client_id":"com.example.app"\#(members)}"#)
        return try #require(answer["authorizationCode"]?.string)
    }

    mutating func send(_ fields: [String: String], to endpoint: Behaviour.Endpoint = .token) throws -> SimulatedResponse
    {
        let usual = ["client_id": "com.example.app", "client_secret": Self.secret()]
        return try server.respond(to: endpoint, FormFields(usual.merging(fields) { $1 }), at: now)
    }

    mutating func trade(_ code: String, _ fields: [String: String] = [:]) throws -> SimulatedResponse {
        try send(["grant_type": "authorization_code", "code": code].merging(fields) { $1 })
    }

    mutating func refresh(_ token: String, _ fields: [String: String] = [:]) throws -> SimulatedResponse {
        try send(["grant_type": "refresh_token", "refresh_token": token].merging(fields) { $1 })
    }

    mutating func refreshToken() throws -> String {
        try #require(try trade(try code()).value["refresh_token"]?.string)
    }
}

extension SimulatedResponse {
    fileprivate var value: JSONValue { (try? JSONValue(parsing: Array(body.utf8))) ?? .null }

    fileprivate func claims() throws -> JSONValue {
        let token = try #require(value["id_token"]?.string)
        return try JSONValue(parsing: CompactJWS(parsing: Array(token.utf8)).payload)
    }
}

private let notValidCode = SimulatedResponse.refusal("invalid_grant", "The code has expired or has been revoked.")
private let notValidToken = SimulatedResponse.refusal("invalid_grant", "The token has expired or has been revoked.")

@Suite("The code grant of the simulated Apple")
struct CodeGrantTests {
    @Test("A code is traded for an access token, a refresh token and an identity token.")
    func success() throws {
        var fixture = try Fixture()
        let response = try fixture.trade(try fixture.code(#","nonce":"n-1""#))
        #expect(response.status == 200)
        #expect(
            response.value.members?.map(\.name)
                == ["access_token", "token_type", "expires_in", "refresh_token", "id_token"]
        )
        #expect(response.value["token_type"]?.string == "Bearer")
        #expect(response.value["expires_in"]?.integer == 3_600)
        let claims = try response.claims()
        let access = try #require(response.value["access_token"]?.string)
        #expect(claims["at_hash"]?.string == TokenHash.of(access))
        #expect(claims["c_hash"] == nil)
        #expect(claims["nonce"]?.string == "n-1")
        #expect(claims["iat"]?.integer == Fixture.seconds && claims["exp"]?.integer == Fixture.seconds + 86_400)
    }

    @Test("A code works once.")
    func used() throws {
        var fixture = try Fixture()
        let code = try fixture.code()
        #expect(try fixture.trade(code).status == 200)
        let again = try fixture.trade(code)
        #expect(again.status == 400)
        #expect(again.body == #"{"error":"invalid_grant","error_description":"The code has already been used."}"#)
    }

    @Test("A code is valid for five minutes.", arguments: [(299, true), (300, false), (301, false)])
    func expiry(_ age: Int, _ isValid: Bool) throws {
        var fixture = try Fixture()
        let code = try fixture.code(#","age":\#(age)"#)
        let old = try fixture.trade(code)
        #expect(isValid ? old.status == 200 : old == notValidCode)
        var advanced = try Fixture()
        let fresh = try advanced.code()
        _ = try advanced.control(.advance, #"{"seconds":\#(age)}"#)
        let secret = Fixture.secret(expiry: Fixture.seconds + 1_000)
        let response = try advanced.trade(fresh, ["client_secret": secret])
        #expect((response.status == 200) == isValid)
    }

    @Test("A code is bound to its client.")
    func otherClient() throws {
        var fixture = try Fixture()
        let other = "com.example.web"
        let fields = ["client_id": other, "client_secret": Fixture.secret(client: other)]
        let code = try fixture.code()
        #expect(
            try fixture.trade(code, fields)
                == .refusal("invalid_grant", "client_id mismatch. The code was not issued to com.example.web")
        )
        #expect(try fixture.trade(code).status == 200)
    }

    @Test("A code is bound to its redirect URI, and to having none.")
    func redirectURI() throws {
        var fixture = try Fixture()
        let bound = try fixture.code(#","redirect_uri":"https://example.com/a""#)
        #expect(try fixture.trade(bound) == .refusal("invalid_grant"))
        #expect(
            try fixture.trade(bound, ["redirect_uri": "https://example.com/b"])
                == .refusal("invalid_grant", "redirect_uri mismatch. The code was not issued to https://example.com/b")
        )
        #expect(try fixture.trade(bound, ["redirect_uri": "https://example.com/a"]).status == 200)
        let free = try fixture.code()
        #expect(try fixture.trade(free, ["redirect_uri": "https://example.com/a"]).status == 400)
    }

    @Test("An unknown code hides a wrong client secret; a known one does not.")
    func order() throws {
        var fixture = try Fixture()
        #expect(try fixture.trade("c0", ["client_secret": "garbage"]) == notValidCode)
        let code = try fixture.code()
        #expect(try fixture.trade(code, ["client_secret": "garbage"]) == .refusal("invalid_client"))
        #expect(try fixture.trade(code).status == 200)
    }

    @Test("What is missing is named.")
    func missing() throws {
        var fixture = try Fixture()
        let code = try fixture.code()
        #expect(try fixture.send([:]) == .refusal("invalid_request"))
        #expect(try fixture.send(["grant_type": "password"]) == .refusal("unsupported_grant_type"))
        #expect(try fixture.send(["grant_type": "authorization_code"]) == .refusal("invalid_request"))
        #expect(try fixture.send(["grant_type": "refresh_token"]) == .refusal("invalid_request"))
        #expect(try fixture.trade(code, ["client_secret": ""]) == .refusal("invalid_client"))
        #expect(try fixture.trade(code, ["client_id": ""]) == .refusal("invalid_client"))
        #expect(try fixture.server.respond(to: .token, nil, at: fixture.now) == .refusal("invalid_request"))
    }

    /// What can happen to a person between the sign-in and the exchange.
    @Test(
        "A code dies with the authorization.",
        arguments: [
            (TokenServer.Control.stopUsing, #"{"client_id":"com.example.web"}"#), (.deleteAccount, ""),
            (.changePassword, ""),
        ]
    )
    func ended(_ control: TokenServer.Control, _ body: String) throws {
        var fixture = try Fixture()
        let (used, code) = (try fixture.code(), try fixture.code())
        let refresh = try #require(try fixture.trade(used).value["refresh_token"]?.string)
        _ = try fixture.control(control, body)
        #expect(try fixture.trade(code) == notValidCode)
        #expect(try fixture.trade(used) == .refusal("invalid_grant", "The code has already been used."))
        #expect(try fixture.refresh(refresh) == notValidToken)
    }

    @Test("The last code is repeated on request.")
    func repeated() throws {
        var fixture = try Fixture()
        let code = try fixture.code()
        _ = try fixture.control(.behave, #"{"repeat_code":true}"#)
        #expect(try fixture.code() == code)
        _ = try fixture.control(.behave, #"{"repeat_code":false}"#)
        #expect(try fixture.code() != code)
    }

    @Test("Only the last code of the same person at the same client is repeated.")
    func repeatedToOwner() throws {
        var fixture = try Fixture()
        func code(_ person: String, _ client: String = "com.example.app") throws -> String {
            let body = #"{"person":"\#(person)","client_id":"\#(client)"}"#
            return try #require(try fixture.control(.signIn, body)["authorizationCode"]?.string)
        }
        let ada = try code("ada")
        _ = try fixture.control(.behave, #"{"repeat_code":true}"#)
        let bob = try code("bob")
        let web = try code("ada", "com.example.web")
        #expect(Set([ada, bob, web]).count == 3)
        #expect(try code("ada") == ada)
        #expect(try code("bob") == bob)
        #expect(try code("ada", "com.example.web") == web)
    }
}

@Suite("The refresh grant and revocation of the simulated Apple")
struct RefreshGrantTests {
    @Test("A refresh token works any number of times, and the answer has none.")
    func success() throws {
        var fixture = try Fixture()
        let token = try fixture.refreshToken()
        for _ in 0..<2 {
            let response = try fixture.refresh(token)
            #expect(response.value.members?.map(\.name) == ["access_token", "token_type", "expires_in", "id_token"])
            let access = try #require(response.value["access_token"]?.string)
            #expect(try response.claims()["at_hash"]?.string == TokenHash.of(access))
        }
    }

    @Test("A refresh token is bound to its client, and an unknown one hides a wrong secret.")
    func refused() throws {
        var fixture = try Fixture()
        let token = try fixture.refreshToken()
        let web = "com.example.web"
        let fields = ["client_id": web, "client_secret": Fixture.secret(client: web)]
        #expect(try fixture.refresh(token, fields) == .refusal("invalid_grant"))
        #expect(try fixture.refresh(token, ["client_secret": "x"]) == .refusal("invalid_client"))
        #expect(try fixture.refresh(token, ["client_id": ""]) == .refusal("invalid_client"))
        #expect(try fixture.refresh("r0", ["client_secret": "x"]) == notValidToken)
    }

    @Test("A revocation ends the authorization, by either token; others get 200 and end nothing.")
    func revocation() throws {
        var fixture = try Fixture()
        let traded = try fixture.trade(try fixture.code())
        let token = try #require(traded.value["refresh_token"]?.string)
        #expect(try fixture.send(["token": "garbage"], to: .revoke) == SimulatedResponse())
        let other = ["client_id": "com.example.web", "client_secret": Fixture.secret(client: "com.example.web")]
        #expect(try fixture.send(["token": token].merging(other) { $1 }, to: .revoke) == SimulatedResponse())
        #expect(try fixture.refresh(token).status == 200)
        #expect(try fixture.send(["token": token, "client_secret": ""], to: .revoke) == .refusal("invalid_client"))
        #expect(try fixture.send([:], to: .revoke) == .refusal("invalid_client"))
        let placeholders = ["client_id": "a", "client_secret": "b", "token": "c"]
        #expect(try fixture.send(placeholders, to: .revoke) == SimulatedResponse())
        let access = try #require(traded.value["access_token"]?.string)
        #expect(try fixture.send(["token": access], to: .revoke) == SimulatedResponse())
        #expect(try fixture.refresh(token) == notValidToken)
    }
}

@Suite("The client secret at the simulated Apple")
struct ClientSecretTests {
    private func isAccepted(_ secret: String) throws -> Bool {
        var fixture = try Fixture()
        return try fixture.trade(try fixture.code(), ["client_secret": secret]).status == 200
    }

    @Test("The longest lifetime is 15,777,000 seconds.")
    func lifetime() throws {
        #expect(try isAccepted(Fixture.secret(expiry: Fixture.seconds + 15_777_000)))
        #expect(try !isAccepted(Fixture.secret(expiry: Fixture.seconds + 15_777_001)))
        #expect(try !isAccepted(Fixture.secret(expiry: Fixture.seconds)))
        #expect(try !isAccepted(Fixture.secret(issuedAt: Fixture.seconds + 1)))
    }

    @Test("Each part must be as documented.")
    func parts() throws {
        #expect(try isAccepted(Fixture.secret()))
        #expect(try !isAccepted(Fixture.secret(team: "OTHER67890")))
        #expect(try !isAccepted(Fixture.secret(client: "com.example.web")))
        #expect(try !isAccepted(Fixture.secret(audience: "https://appleid.apple.com/")))
        #expect(try !isAccepted(Fixture.secret(header: #"{"alg":"ES256"}"#)))
        #expect(try !isAccepted(Fixture.secret(header: #"{"alg":"RS256","kid":"KEY4567890"}"#)))
        // The length of DER.
        #expect(try !isAccepted(Fixture.secret(signature: 70)))
        #expect(try !isAccepted(Fixture.secret() + ".x"))
    }

    @Test("Team ids and key ids are ten characters.", arguments: ["KEY456789", "key4567890", "KEY4567890A", ""])
    func identifiers(_ id: String) throws {
        #expect(try !isAccepted(Fixture.secret(header: #"{"alg":"ES256","kid":"\#(id)"}"#)))
        #expect(try !isAccepted(Fixture.secret(team: id)))
    }

    /// A secret of com.example.app with a signature over its header and claims.
    private func signed(
        by key: P256PrivateKey,
        kid: String = "KEY4567890",
        team: String = "TEAM567890",
        isDER: Bool = false
    ) throws -> String {
        let text = Fixture.secret(header: #"{"alg":"ES256","kid":"\#(kid)"}"#, team: team)
        let input = text.prefix(upTo: try #require(text.lastIndex(of: ".")))
        var signature = try key.sign(Array(input.utf8))
        if isDER {
            let halves = [signature.prefix(32), signature.suffix(32)].map { [0x02, 0x21, 0] + $0 }
            signature = [0x30, 0x46] + halves[0] + halves[1]
        }
        return input + "." + Base64URL.encode(signature)
    }

    @Test(
        "With registered keys, only a signature of the key of kid is accepted, if the key is the team's and the app's."
    )
    func signature() throws {
        let (key, other, own) = (
            try P256PrivateKey.generate(), try P256PrivateKey.generate(), try P256PrivateKey.generate()
        )
        let keys = [
            ClientSecretCheck.Key(team: "TEAM567890", id: "KEY4567890", publicKey: key.publicKey),
            ClientSecretCheck.Key(team: "OTHER67890", id: "OTHER67890", publicKey: other.publicKey),
            ClientSecretCheck.Key(
                team: "TEAM567890",
                app: "com.example.app",
                id: "OWN4567890",
                publicKey: own.publicKey
            ),
            ClientSecretCheck.Key(team: "TEAM567890", app: "com.example.x", id: "FOREIGN890", publicKey: own.publicKey),
        ]
        func answer(_ secret: String) throws -> SimulatedResponse {
            var fixture = try Fixture(keys: keys)
            return try fixture.trade(try fixture.code(), ["client_secret": secret])
        }
        let good = try signed(by: key)
        #expect(try answer(good).status == 200)
        #expect(try answer(signed(by: own, kid: "OWN4567890")).status == 200)
        let parts = good.split(separator: ".")
        let claims = Fixture.secret(expiry: Fixture.seconds + 301).split(separator: ".")[1]
        let refused = [
            Fixture.secret(), "\(parts[0]).\(claims).\(parts[2])", try signed(by: other),
            try signed(by: other, kid: "OTHER67890"), try signed(by: other, kid: "OTHER67890", team: "OTHER67890"),
            try signed(by: key, kid: "KEY0000000"), try signed(by: own, kid: "FOREIGN890"),
            try signed(by: key, isDER: true),
        ]
        for (number, secret) in refused.enumerated() {
            #expect(try answer(secret) == .refusal("invalid_client"), "\(number)")
        }
    }
}

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

@Suite("Forms")
struct FormFieldsTests {
    @Test("Fields are decoded.")
    func decoded() throws {
        let form = try #require(FormFields(parsing: Array("a=1%2B1&b=x+y&c=&%64".utf8)))
        #expect(form["a"] == "1+1" && form["b"] == "x y" && form["c"] == nil && form["d"] == nil)
        #expect(form.names == ["a", "b", "c", "d"])
    }

    @Test("Malformed forms are refused.", arguments: ["a=1&a=2", "a=%4", "a=%zz", "a=%ff"])
    func malformed(_ text: String) {
        #expect(FormFields(parsing: Array(text.utf8)) == nil)
        #expect(FormFields(parsing: Array((0..<17).map { "f\($0)=" }.joined(separator: "&").utf8)) == nil)
    }
}
