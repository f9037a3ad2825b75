import AppleSimulator
import JOSE
import Testing

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
