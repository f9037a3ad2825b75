import AppleSimulator
import FoundationEssentials
import JOSE
import Testing

/// Two answers of Apple's token endpoint. They are not part of the project.
private let folder = URL(filePath: #filePath)
    .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()
    .appending(path: "shared/vectors")

@Suite(
    "Recorded answers",
    .enabled(
        if: FileManager.default.fileExists(atPath: folder.path),
        "the folder ../shared/vectors with real answers is missing"
    )
)
struct RecordedAnswerTests {
    @Test(
        "From the same values, the simulated Apple makes the bytes of a recorded answer.",
        arguments: ["token-response-2022-11.json", "token-response-2022-12.json"]
    )
    func bytes(_ file: String) throws {
        var text = try String(contentsOf: folder.appending(path: file), encoding: .utf8)
        while text.last?.isNewline == true { text.removeLast() }
        let answer = try JSONValue(parsing: Array(text.utf8))
        let access = try #require(answer["access_token"]?.string)
        let refresh = try #require(answer["refresh_token"]?.string)
        let identity = try #require(answer["id_token"]?.string)
        #expect(SimulatedResponse.tokens(access: access, refresh: refresh, identity: identity).body == text)

        let recorded = try CompactJWS(parsing: Array(identity.utf8))
        let claims = try JSONValue(parsing: recorded.payload)
        let made = SimulatedIdentity(
            sub: try #require(claims["sub"]?.string),
            client: try #require(claims["aud"]?.string),
            issuedAt: try #require(claims["iat"]?.integer),
            authenticatedAt: try #require(claims["auth_time"]?.integer),
            companion: .accessToken(access),
            address: .init(try #require(claims["email"]?.string)),
            realUserStatus: claims["real_user_status"]?.integer.map(Int.init),
            flags: .text
        )
        #expect(made.claims(issuer: SimulatedApple.appleIssuer) == String(decoding: recorded.payload, as: UTF8.self))
        let apple = try SimulatedApple(key: .generate(), keyID: recorded.keyID)
        #expect(identity.hasPrefix(Base64URL.encode(Array(apple.header.utf8)) + "."))
    }

    @Test("Codes and tokens have the format of the recorded ones.")
    func format() throws {
        let text = try String(contentsOf: folder.appending(path: "token-response-2022-11.json"), encoding: .utf8)
        let recorded = try JSONValue(parsing: Array(text.utf8))
        var server = TokenServer(apple: try .generate())
        let device = try server.perform(.signIn, Array(#"{"client_id":"a"}"#.utf8), at: 1_700_000_000_000).response
        let code = try #require(device["authorizationCode"]?.string)
        let format = /([acr])[0-9a-f]{32}\.0\.[a-z]{4,5}\.[A-Za-z0-9_-]{22}/
        #expect(code.wholeMatch(of: format)?.1 == "c")
        #expect(recorded["access_token"]?.string?.wholeMatch(of: format)?.1 == "a")
        #expect(recorded["refresh_token"]?.string?.wholeMatch(of: format)?.1 == "r")
    }
}

@Suite("Recorded refusals")
struct RecordedRefusalTests {
    /// Bodies as developers quoted them.
    @Test("The simulated Apple makes the bytes of each recorded refusal.")
    func bytes() throws {
        var server = TokenServer(
            apple: try .generate(),
            clients: ["com.xxx.app", "com.xxx.www"].map { .init(id: $0, team: nil, app: "com.xxx.app") }
        )
        let now: Int64 = 1_700_000_000_000
        func secret(_ client: String) -> String {
            let header = #"{"alg":"ES256","kid":"KEY4567890"}"#
            let claims =
                #"{"iss":"TEAM567890","iat":1700000000,"exp":1700000300,"aud":"https://appleid.apple.com","sub":"\#(client)"}"#
            return [Array(header.utf8), Array(claims.utf8), [UInt8](repeating: 7, count: 64)].map(Base64URL.encode)
                .joined(separator: ".")
        }
        func code() throws -> String {
            let answer = try server.perform(.signIn, Array(#"{"client_id":"com.xxx.app"}"#.utf8), at: now)
            return try #require(answer.response["authorizationCode"]?.string)
        }
        func answer(_ fields: [String: String], client: String = "com.xxx.app") throws -> String {
            let usual = ["client_id": client, "client_secret": secret(client)]
            return try server.respond(to: .token, FormFields(usual.merging(fields) { $1 }), at: now).body
        }
        func trade(_ code: String, client: String = "com.xxx.app", secret: String? = nil) throws -> String {
            var fields = ["grant_type": "authorization_code", "code": code]
            fields["client_secret"] = secret
            return try answer(fields, client: client)
        }
        let used = try code()
        _ = try trade(used)
        #expect(
            try trade(used) == #"{"error":"invalid_grant","error_description":"The code has already been used."}"#
        )
        let garbage = #"{"error":"invalid_grant","error_description":"The code has expired or has been revoked."}"#
        #expect(try trade("garbage") == garbage)
        #expect(try trade("garbage", secret: "garbage") == garbage)
        #expect(
            try answer(["grant_type": "refresh_token", "refresh_token": "garbage"])
                == #"{"error":"invalid_grant","error_description":"The token has expired or has been revoked."}"#
        )
        #expect(
            try trade(code(), client: "com.xxx.www")
                == #"{"error":"invalid_grant","error_description":"#
                + #""client_id mismatch. The code was not issued to com.xxx.www"}"#
        )
        #expect(try trade(code(), secret: "garbage") == #"{"error":"invalid_client"}"#)
        #expect(try answer(["grant_type": "password"]) == #"{"error":"unsupported_grant_type"}"#)
    }
}
