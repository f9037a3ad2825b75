import JOSE
import Testing

@Suite(.enabled(if: !Vectors.areMissing, "The folder shared/vectors is missing; SIWAD_VECTORS names another."))
struct RealNotificationTests {
    private func verifier(for token: CompactJWS) throws -> RSAVerifier {
        let keys = try JSONWebKeySet(parsing: Vectors.read("apple-keys-2022-07.json") ?? [])
        return try RSAVerifier(#require(keys.key(token.keyID ?? "")).publicKey)
    }

    @Test("Apple's key set of 2022 is read without a remark.")
    func keySet() throws {
        let keys = try JSONWebKeySet(parsing: Vectors.read("apple-keys-2022-07.json") ?? [])
        #expect(keys.keys.map(\.keyID) == ["AIDOPK1", "fh6Bs8C"])
        #expect(keys.ignored.isEmpty)
        #expect(keys.keys.allSatisfy { $0.publicKey.bits == 2048 && $0.publicKey.exponent == 65537 })
    }

    @Test("A real notification carries Apple's signature, and no other key's.", arguments: Vectors.names)
    func signature(name: String) throws {
        let token = try CompactJWS(parsing: Vectors.token(name))
        let keys = try JSONWebKeySet(parsing: Vectors.read("apple-keys-2022-07.json") ?? [])
        let own = try verifier(for: token).isValid(token)
        let other = try RSAVerifier(#require(keys.key("AIDOPK1")).publicKey).isValid(token)
        #expect(own)
        #expect(!other)
        #expect(token.keyID == "fh6Bs8C")
    }

    @Test("Any bit of a real notification that is turned makes it fail.", arguments: Vectors.names)
    func everyBit(name: String) throws {
        let token = Vectors.token(name)
        let verifier = try verifier(for: CompactJWS(parsing: token))
        for place in token.indices {
            for bit in 0..<8 {
                var changed = token
                changed[place] ^= 1 << bit
                if Fixtures.isVerified(changed, by: verifier) { Issue.record("byte \(place), bit \(bit)") }
            }
        }
    }

    @Test("A real notification that is cut or spliced anywhere fails.", arguments: Vectors.names)
    func everyCut(name: String) throws {
        let token = Vectors.token(name)
        let verifier = try verifier(for: CompactJWS(parsing: token))
        for place in token.indices {
            let variants = [
                Array(token[..<place]), Array(token[..<place] + token[(place + 1)...]),
                Array(token[place...] + token[..<place]),
            ]
            for (kind, variant) in variants.enumerated() where !(kind == 2 && place == 0) {
                if Fixtures.isVerified(variant, by: verifier) { Issue.record("byte \(place), kind \(kind)") }
            }
        }
    }

    @Test("The claims of a real notification are strict JSON with a JSON text inside.", arguments: Vectors.names)
    func claims(name: String) throws {
        let claims = try JSONValue(parsing: CompactJWS(parsing: Vectors.token(name)).payload)
        #expect(claims.members?.map(\.name) == ["iss", "aud", "exp", "iat", "jti", "events"])
        #expect(claims["iss"]?.string == "https://appleid.apple.com")
        let events = try JSONValue(parsing: Array(#require(claims["events"]?.string).utf8))
        #expect(events["type"]?.string == "consent-revoked")
        #expect(events.members?.map(\.name) == ["type", "sub", "event_time"])
    }
}
