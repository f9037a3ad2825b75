import AppleTokens
import JOSE
import Testing

@Suite("Sealed refresh tokens")
struct SealedRefreshTokenTests {
    private func failure(_ body: () throws(JOSEError) -> String) -> JOSEError.Code? {
        do throws(JOSEError) {
            _ = try body()
            return nil
        } catch {
            return error.code
        }
    }

    @Test("A refresh token opens for its person and client only, and only with its key.")
    func row() throws {
        let keys = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
        let place = SealedRefreshToken(account: 7, client: ClientID("com.example.app"))
        let sealed = try place.seal("r1", with: keys)
        #expect(!String(decoding: sealed, as: UTF8.self).contains("r1"))
        #expect(try place.open(sealed, with: keys) == "r1")
        for other in [
            SealedRefreshToken(account: 70, client: place.client),
            SealedRefreshToken(account: 7, client: ClientID("com.example.App")),
        ] {
            #expect(failure { () throws(JOSEError) in try other.open(sealed, with: keys) } == .notAuthentic)
        }
        let foreign = try SealingKeys(parsing: SealingKeys.newLine(name: "k1"))
        #expect(failure { () throws(JOSEError) in try place.open(sealed, with: foreign) } == .notAuthentic)
        let other = try keys.seal(Array("{\"token\":\"r1\"}".utf8))
        #expect(failure { () throws(JOSEError) in try place.open(other, with: keys) } == .notAuthentic)
    }
}
