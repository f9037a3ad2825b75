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
