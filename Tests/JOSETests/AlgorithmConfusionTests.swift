import JOSE
import Testing

/// RFC 8725 §2.1 and §3.1: the header never decides how a token is checked.
@Suite struct AlgorithmConfusionTests {
    @Test(
        "Every algorithm but RS256 is refused, in every spelling.",
        arguments: [
            "none", "None", "NONE", "nOnE", "", " ", "HS256", "HS384", "HS512", "hs256", "RS384", "RS512", "RS1",
            "PS256", "PS384", "PS512",
            "ES256", "ES384", "ES512", "ES256K", "EdDSA", "Ed25519", "RSA-OAEP", "RSA1_5", "dir", "A128KW", "rs256",
            "Rs256", "rS256",
            "RS256 ", " RS256", "RS256\\n", "RS256\\t", "RS256none", "RS256,none", "RS-256", "RS２56", "\\uff32S256",
            "RS256\\u200b",
            "RS256\\u0301",
        ]
    )
    func otherAlgorithm(name: String) throws {
        let token = try Fixtures.token(header: "{\"kid\":\"test\",\"alg\":\"\(name)\"}")
        #expect(Fixtures.refusal(token) == .unsupportedAlgorithm)
    }

    @Test("RS256 spelled with an escape is RS256: the text decides, not its spelling.")
    func escapedAlgorithm() throws {
        #expect(Fixtures.refusal(try Fixtures.token(header: #"{"kid":"test","alg":"RS\u003256"}"#)) == nil)
    }

    @Test("An unsecured token is refused, with and without a signature.")
    func unsecured() throws {
        let parts = Fixtures.parts(try Fixtures.token(header: #"{"alg":"none"}"#))
        let bare = parts[0] + [UInt8(ascii: ".")] + parts[1] + [UInt8(ascii: ".")]
        #expect(Fixtures.refusal(bare) == .unsupportedAlgorithm)
        #expect(Fixtures.refusal(bare + parts[2]) == .unsupportedAlgorithm)
    }

    @Test(
        "An alg that is missing, no string, or there twice is refused.",
        arguments: [
            #"{}"#, #"{"kid":"test"}"#, #"{"alg":null}"#, #"{"alg":256}"#, #"{"alg":true}"#, #"{"alg":["RS256"]}"#,
            #"{"alg":{"RS256":1}}"#,
            #"{"alg":"RS256","alg":"none"}"#, #"{"alg":"none","alg":"RS256"}"#, #"{"alg":"RS256","alg":"RS256"}"#,
            #"{"alg":"RS256","\u0061lg":"none"}"#, #"{"\u0061lg":"HS256","alg":"RS256"}"#, #"{"Alg":"RS256"}"#,
            #"{"ALG":"RS256"}"#,
            #"{"alg ":"RS256"}"#,
        ]
    )
    func malformedAlgorithm(header: String) throws {
        #expect(Fixtures.refusal(try Fixtures.token(header: header)) == .malformedToken)
    }

    @Test("A member that only looks like alg doesn't count.")
    func lookAlike() throws {
        #expect(Fixtures.refusal(try Fixtures.token(header: #"{"alg":"RS256","Alg":"none","ALG":"HS256"}"#)) == nil)
        #expect(Fixtures.refusal(try Fixtures.token(header: #"{"Alg":"RS256","alg":"none"}"#)) == .unsupportedAlgorithm)
    }

    @Test(
        "A digest of 32 bytes, as HS256 would have with the public key for its secret, does not pass for a signature."
    )
    func macForSignature() throws {
        let verifier = try RSAVerifier(Fixtures.key().publicKey)
        let token = try CompactJWS(parsing: Fixtures.token())
        let short = SHA256.digest(token.bytes.span)
        let answer = verifier.isValid(signature: short.span, over: token.bytes.span)
        #expect(!answer)
    }

    @Test(
        "A header that asks for an extension is refused: crit, b64, zip and JWE's enc.",
        arguments: [
            #""crit":["b64"],"b64":false"#, #""crit":["exp"],"exp":1"#, #""crit":[]"#, #""crit":null"#,
            #""crit":["alg"]"#, #""crit":"b64""#,
            #""cr\u0069t":["x"],"x":1"#, #""b64":false"#, #""b64":true"#, #""b64":null"#, #""zip":"DEF""#,
            #""zip":null"#,
            #""enc":"A128GCM""#,
        ]
    )
    func extensions(member: String) throws {
        let token = try Fixtures.token(header: "{\"alg\":\"RS256\",\"kid\":\"test\",\(member)}")
        #expect(Fixtures.refusal(token) == .unsupportedHeader)
    }

    @Test("The header of a refused token identifies App Store Server Notifications.")
    func appStoreToken() throws {
        let token = try Fixtures.token(header: #"{"alg":"ES256","x5c":["MIIB","MIIC","MIID"]}"#)
        #expect(Fixtures.refusal(token) == .unsupportedAlgorithm)
        let header = try JWSHeader(ofToken: token)
        #expect(header.algorithm == "ES256")
        #expect(header.carriesCertificates)
    }
}

/// A key that comes with the token is never the one it is checked with.
@Suite struct EmbeddedKeyTests {
    @Test("A token that brings its own key, or says where to fetch it, is checked with the trusted key alone.")
    func embeddedKeys() throws {
        let attacker = try RSAPrivateKey.generate()
        let trusted = try RSAVerifier(Fixtures.key().publicKey)
        let jwk = try JSONWebKey(keyID: "test", publicKey: attacker.publicKey).json
        let members = [
            #""jwk":\#(jwk)"#, #""jku":"http://127.0.0.1:1/keys""#, #""x5u":"http://127.0.0.1:1/cert""#,
            #""x5c":["MIIB"]"#, #""x5t":"AAAA""#,
            ##""x5t#S256":"AAAA""##,
        ]
        for member in members {
            let header = Array("{\"alg\":\"RS256\",\"kid\":\"test\",\(member)}".utf8)
            let forged = try CompactJWS.signed(header: header, payload: Array("{}".utf8), by: attacker)
            #expect(Fixtures.refusal(Array(forged.utf8)) == nil)
            #expect(!Fixtures.isVerified(Array(forged.utf8), by: trusted))
            #expect(Fixtures.isVerified(try Fixtures.token(header: header, payload: []), by: trusted))
        }
    }
}
