import JOSE
import Testing

@Suite struct JSONWebKeyTests {
    private static let modulus: [UInt8] = [0xC1] + [UInt8](repeating: 0x5A, count: 254) + [0x01]

    /// A JWK with members changed (nil removes one) or added.
    private func jwk(_ changes: [(String, String?)] = []) -> String {
        var members = [
            ("kty", "\"RSA\""), ("kid", "\"a\""), ("use", "\"sig\""), ("alg", "\"RS256\""),
            ("n", "\"\(Base64URL.encode(Self.modulus))\""),
            ("e", "\"AQAB\""),
        ]
        for (name, value) in changes {
            members.removeAll { $0.0 == name }
            if let value { members.append((name, value)) }
        }
        return "{" + members.map { "\"\($0.0)\":\($0.1)" }.joined(separator: ",") + "}"
    }

    /// Why a JWK is refused; nil if it is taken.
    private func reason(_ json: String) -> String? {
        do throws(JOSEError) {
            _ = try JSONWebKey(JSONValue(parsing: Array(json.utf8)))
            return nil
        } catch {
            return error.code == .unusableKey ? error.message : "\(error)"
        }
    }

    private func encoded(_ bytes: [UInt8]) -> String { "\"\(Base64URL.encode(bytes))\"" }

    @Test("A key in Apple's shape is taken, and one that says less of itself.")
    func usable() {
        #expect(reason(jwk()) == nil)
        #expect(reason(jwk([("use", nil), ("alg", nil)])) == nil)
        #expect(reason(jwk([("key_ops", #"["verify"]"#), ("x5t", "\"AAAA\""), ("more", "[1]")])) == nil)
        #expect(reason(jwk([("key_ops", #"["encrypt","verify"]"#)])) == nil)
    }

    @Test(
        "A key for another use is refused.",
        arguments: [
            ("use", "\"enc\"", "use is not sig"), ("use", "\"SIG\"", "use is not sig"), ("use", "1", "use is not sig"),
            ("use", "null", "use is not sig"), ("key_ops", #"["sign"]"#, "key_ops does not include verify"),
            ("key_ops", "[]", "key_ops does not include verify"),
            ("key_ops", "\"verify\"", "key_ops does not include verify"),
            ("key_ops", "null", "key_ops does not include verify"), ("alg", "\"RS512\"", "alg is not RS256"),
            ("alg", "\"PS256\"", "alg is not RS256"),
            ("alg", "\"HS256\"", "alg is not RS256"), ("alg", "\"none\"", "alg is not RS256"),
            ("alg", "\"rs256\"", "alg is not RS256"),
            ("alg", "null", "alg is not RS256"), ("kty", "\"EC\"", "kty is not RSA"),
            ("kty", "\"oct\"", "kty is not RSA"),
            ("kty", "\"rsa\"", "kty is not RSA"), ("kty", "1", "kty is not RSA"), ("kty", nil, "kty is not RSA"),
        ] as [(String, String?, String)]
    )
    func otherUse(name: String, value: String?, expected: String) {
        #expect(reason(jwk([(name, value)])) == expected)
    }

    @Test("A key that carries private members is refused.", arguments: ["d", "p", "q", "dp", "dq", "qi", "oth", "k"])
    func privateMembers(name: String) {
        #expect(reason(jwk([(name, "\"AQAB\"")])) == "it carries private members")
        #expect(reason(jwk([(name, "null")])) == "it carries private members")
    }

    @Test("A modulus below 2048 bits, beyond 8192, even, empty or with leading zeros is refused.")
    func moduli() {
        let middle = [UInt8](repeating: 0x5A, count: 254)
        let refused: [[UInt8]] = [
            [], [0], [1], [0xC1, 0x01], [0x7F] + middle + [1], [0xC1] + [UInt8](repeating: 0x5A, count: 126) + [1],
            [0xC1] + middle + [2],
            [0x00, 0xC1] + middle + [1], [0x01, 0xC1] + [UInt8](repeating: 0x5A, count: 1022) + [1],
        ]
        for modulus in refused { #expect(reason(jwk([("n", encoded(modulus))])) != nil) }
        #expect(reason(jwk([("n", encoded([0x80] + middle + [1]))])) == nil)
        #expect(reason(jwk([("n", encoded([0xFF] + [UInt8](repeating: 0x5A, count: 1022) + [1]))])) == nil)
    }

    @Test("An exponent that is 1, 3, even, small, empty, padded with zeros or beyond 32 bits is refused.")
    func exponents() {
        let refused: [[UInt8]] = [
            [], [0], [1], [2], [3], [17], [0xFF, 0xFF], [1, 0, 0], [1, 0, 2], [0, 1, 0, 1], [1, 0, 0, 0, 1],
            [UInt8](repeating: 0xFF, count: 256),
        ]
        for exponent in refused { #expect(reason(jwk([("e", encoded(exponent))])) != nil, "\(exponent)") }
        #expect(reason(jwk([("e", encoded([1, 0, 3]))])) == nil)
        #expect(reason(jwk([("e", encoded([0xFF, 0xFF, 0xFF, 0xFF]))])) == nil)
    }

    @Test("Numbers of a key that are missing, no strings or not canonical base64url are refused.")
    func numberForms() {
        for name in ["n", "e"] {
            for value in [nil, "1", "null", "\"AQAB=\"", "\"AQA+\"", "\"AQAB \"", "\"A\"", "\"AQAB\\n\""] {
                #expect(reason(jwk([(name, value)])) != nil)
            }
        }
        #expect(reason(jwk([("e", "\"AQF\"")])) == "e is not canonical base64url")
    }

    @Test("A kid that is missing or no string of 1 to 256 visible ASCII characters is refused.")
    func keyIDs() {
        for value in [
            nil, "1", "null", "\"\"", "\"a b\"", "\"\\n\"", "\"é\"", "\"\(String(repeating: "a", count: 257))\"",
        ] {
            #expect(reason(jwk([("kid", value)])) != nil)
        }
        #expect(reason(jwk([("kid", "\"\(String(repeating: "a", count: 256))\"")])) == nil)
    }

    @Test("A key is written in one spelling, and read back as the same key.")
    func spelling() throws {
        let key = try JSONWebKey(JSONValue(parsing: Array(jwk([("use", nil), ("x", "1")]).utf8)))
        #expect(key.json == jwk())
        #expect(try JSONWebKey(JSONValue(parsing: Array(key.json.utf8))) == key)
    }

    @Test("The thumbprint is that of RFC 7638's example.")
    func thumbprint() throws {
        let modulus =
            "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs"
            + "tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvR"
            + "L5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnq"
            + "DKgw"
        let key = try RSAPublicKey(modulus: Base64URL.decode(modulus), exponent: Base64URL.decode("AQAB"))
        #expect(key.thumbprint == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs")
    }
}
