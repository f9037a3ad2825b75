import AppleSimulator
import StoreTestSupport
import Testing

@Suite("Search for tokens at the end of each test", .timeLimit(.minutes(10)))
struct TokenSearchTests {
    @Test("It finds codes, identity tokens and client secrets in texts, and a code in a column of bytes.")
    func found() async throws {
        try await FlowFixture.with { fixture in
            let device = try fixture.apple.signIn()
            _ = try await fixture.signIn(fixture.request(device))
            let secret = try #require(fixture.apple.forms.first?["client_secret"])
            let texts = ["code: \(device.code)", "\"\(device.token)\"", secret, "eyJ", "version 1.0.0"]
            #expect(TokenSearch.tokens(in: texts).count == 3)

            #expect(try await TokenSearch.tokensInDatabase(fixture.texts) == [])
            let sealed = try await fixture.texts("SELECT sealed::text FROM siwa.apple_tokens")
            try await fixture.run("UPDATE siwa.apple_tokens SET sealed = convert_to('\(device.code)', 'UTF8')")
            #expect(try await TokenSearch.tokensInDatabase(fixture.texts) == [String(device.code.prefix(12))])
            try await fixture.run("UPDATE siwa.apple_tokens SET sealed = '\(sealed[0])'")
        }
    }
}
