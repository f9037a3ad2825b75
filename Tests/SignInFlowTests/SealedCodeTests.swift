import AppleTokens
import JOSE
import Testing

@testable import SignInFlow

@Suite("Sealed codes")
struct SealedCodeTests {
    private let client = ClientID("com.example.one")
    private let code = "c1f9ad3b67ef44eb4a26c1e0f2bb5f1dd.0.srzwt.pX4zPSN6hE6kCSUnjNVNLQ"

    /// The reason why a text does not open; nil if it opens.
    private func failure(opening sealed: [UInt8], for client: ClientID, with keys: SealingKeys) -> JOSEError.Code? {
        do throws(JOSEError) {
            _ = try SealedCode(opening: sealed, for: client, with: keys)
            return nil
        } catch {
            return error.code
        }
    }

    @Test("A code opens for its client, with its redirect URI.", arguments: [nil, "https://example.com/callback?a=b"])
    func opened(redirectURI: String?) throws {
        let keys = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
        let sealed = try SealedCode(code: code, redirectURI: redirectURI).seal(for: client, with: keys)
        #expect(!String(decoding: sealed, as: UTF8.self).contains(code))
        let opened = try SealedCode(opening: sealed, for: client, with: keys)
        #expect(opened.code == code && opened.redirectURI == redirectURI)
    }

    @Test(
        "A code does not open for another client.",
        arguments: ["com.example.two", "com.example.One", "com.example.one ", "com.example", ""]
    )
    func otherClient(client other: String) throws {
        let keys = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
        let sealed = try SealedCode(code: code, redirectURI: nil).seal(for: client, with: keys)
        #expect(failure(opening: sealed, for: ClientID(other), with: keys) == .notAuthentic)
    }

    @Test("Neither another ring opens a code, nor does another sealed text of the client open as one.")
    func otherText() throws {
        let keys = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
        let sealed = try SealedCode(code: code, redirectURI: nil).seal(for: client, with: keys)
        let sameName = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
        #expect(failure(opening: sealed, for: client, with: sameName) == .notAuthentic)
        let otherName = try SealingKeys(parsing: SealingKeys.newLine(name: "k2"))
        #expect(failure(opening: sealed, for: client, with: otherName) == .unknownSealingKey)
        let token = try SealedRefreshToken(account: 1, client: client).seal("r1", with: keys)
        #expect(failure(opening: token, for: client, with: keys) == .notAuthentic)
        let homeless = try keys.seal(Array("{\"code\":\"\(code)\"}".utf8))
        #expect(failure(opening: homeless, for: client, with: keys) == .notAuthentic)
    }
}
