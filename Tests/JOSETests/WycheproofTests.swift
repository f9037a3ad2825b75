import JOSE
import Testing

/// The vectors of Project Wycheproof for what is implemented here. They are not part of the project.
@Suite(
    "Wycheproof",
    .enabled(
        if: Vectors.read("wycheproof/json_web_signature_test.json") != nil,
        "The folder shared/vectors/wycheproof is missing; SIWAD_VECTORS names another shared/vectors."
    )
)
struct WycheproofTests {
    /// What becomes of a vector.
    enum Outcome: Hashable {
        case accepted
        case badSignature
        case keyRefused
        case tokenRefused(JOSEError.Code)
    }

    /// An outcome together with the result that the file asks for: `valid`, `invalid` or `acceptable`.
    struct Tally: Hashable, CustomStringConvertible {
        let outcome: Outcome
        let result: String

        init(_ outcome: Outcome, _ result: String) {
            self.outcome = outcome
            self.result = result
        }

        var description: String { "\(outcome), \(result)" }
    }

    /// The groups of a file, each with its vectors.
    private func groups(_ name: String) throws -> [(group: JSONValue, vectors: [JSONValue])] {
        let file = try JSONValue(parsing: #require(Vectors.read("wycheproof/\(name).json")))
        let groups = try #require(file["testGroups"]?.array).map { group in
            (group, try #require(group["tests"]?.array))
        }
        #expect(file["numberOfTests"] == .number(JSONNumber(Int64(groups.reduce(0) { $0 + $1.1.count }))))
        return groups
    }

    private func text(_ value: JSONValue, _ name: String) throws -> String {
        try #require(value[name]?.string, "\(name) is missing")
    }

    private func bytes(hexadecimal text: String) throws -> [UInt8] {
        let digits = Array(text.utf8)
        return try stride(from: 0, to: digits.count, by: 2).map { place in
            try #require(UInt8(String(decoding: digits[place..<(place + 2)], as: UTF8.self), radix: 16))
        }
    }

    // MARK: - RSA

    @Test(
        "No RSA signature is accepted that PKCS#1 v1.5 does not produce, and each that it does is.",
        arguments: [
            (
                2048,
                [Tally(.accepted, "valid"): 7, Tally(.badSignature, "invalid"): 249, Tally(.keyRefused, "valid"): 2]
            ),
            (
                3072,
                [Tally(.accepted, "valid"): 7, Tally(.badSignature, "invalid"): 250, Tally(.keyRefused, "valid"): 1]
            ),
            (4096, [Tally(.accepted, "valid"): 7, Tally(.badSignature, "invalid"): 250]),
        ]
    )
    func signatures(bits: Int, expected: [Tally: Int]) throws {
        var expected = expected
        // A DigestInfo without the NULL: RFC 8017 lets a verifier refuse it, and comparing as a whole does.
        expected[Tally(.badSignature, "acceptable")] = 1
        var tallies: [Tally: Int] = [:]
        for (group, vectors) in try groups("rsa_signature_\(bits)_sha256_test") {
            let numbers = try #require(group["publicKey"])
            let modulus = try bytes(hexadecimal: text(numbers, "modulus")).drop { $0 == 0 }
            let exponent = try bytes(hexadecimal: text(numbers, "publicExponent")).drop { $0 == 0 }
            let key = try usable { () throws(JOSEError) in
                try RSAPublicKey(modulus: Array(modulus), exponent: Array(exponent))
            }
            // The only keys that are refused have the exponent 3, which is below 65537.
            #expect((key == nil) == (exponent == [3]))
            let verifier = try key.map { try RSAVerifier($0) }
            for vector in vectors {
                let message = try bytes(hexadecimal: text(vector, "msg"))
                let signature = try bytes(hexadecimal: text(vector, "sig"))
                let isValid = verifier?.isValid(signature: signature.span, over: message.span)
                let outcome = isValid.map { $0 ? Outcome.accepted : .badSignature } ?? .keyRefused
                tallies[Tally(outcome, try text(vector, "result")), default: 0] += 1
            }
        }
        #expect(tallies == expected)
    }

    // MARK: - ECDSA

    @Test("Each valid ES256 signature is accepted, and no invalid one.")
    func ecdsa() throws {
        var tallies: [String: Int] = [:]
        for (group, vectors) in try groups("ecdsa_secp256r1_sha256_p1363_test") {
            let point = try bytes(hexadecimal: text(#require(group["publicKey"]), "uncompressed"))
            let key = try P256PublicKey(point: point)
            for vector in vectors {
                let signature = try bytes(hexadecimal: text(vector, "sig"))
                let message = try bytes(hexadecimal: text(vector, "msg"))
                let result = try text(vector, "result")
                let isValid = try key.isValid(signature: signature, over: message)
                #expect(isValid == (result == "valid"), "\(vector["tcId"]?.compactText ?? "-")")
                tallies[result, default: 0] += 1
            }
        }
        #expect(tallies == ["valid": 173, "invalid": 89])
    }

    // MARK: - AES-GCM

    @Test("Each valid text of AES-256-GCM opens and is sealed alike; no invalid one opens.")
    func sealing() throws {
        var tallies: [String: Int] = [:]
        for (group, vectors) in try groups("aes_gcm_test")
        where [group["keySize"], group["ivSize"], group["tagSize"]].map({ $0?.integer }) == [256, 96, 128] {
            for vector in vectors {
                let number = try #require(vector["tcId"])
                let key = try bytes(hexadecimal: text(vector, "key"))
                let iv = try bytes(hexadecimal: text(vector, "iv"))
                let context = try bytes(hexadecimal: text(vector, "aad"))
                let message = try bytes(hexadecimal: text(vector, "msg"))
                let ciphertext = try bytes(hexadecimal: text(vector, "ct"))
                let tag = try bytes(hexadecimal: text(vector, "tag"))
                let result = try text(vector, "result")
                let opened = try AES256GCM.decrypt(ciphertext, tag: tag, key: key, iv: iv, context: context)
                #expect(opened == (result == "valid" ? message : nil), "tcId \(number)")
                if result == "valid" {
                    let sealed = try AES256GCM.encrypt(message, key: key, iv: iv, context: context)
                    #expect(sealed.ciphertext == ciphertext && sealed.tag == tag, "tcId \(number)")
                }
                tallies[result, default: 0] += 1
            }
        }
        #expect(tallies == ["valid": 39, "invalid": 27])
    }

    // MARK: - JWS

    @Test("No JWS is accepted but a valid one in compact form, by RS256 and with a key for it; each of these is.")
    func tokens() throws {
        var tallies: [Tally: Int] = [:]
        for (group, vectors) in try groups("json_web_signature_test") {
            let jwk = try #require(group["public"] ?? group["private"])
            let key = try usable { () throws(JOSEError) in try JSONWebKey(jwk).publicKey }
            let isForRS256 = jwk["kty"]?.string == "RSA" && [nil, "RS256"].contains(jwk["alg"]?.string)
            for vector in vectors {
                let result = try text(vector, "result")
                let token = Array(try text(vector, "jws").utf8)
                let refusal = Fixtures.refusal(token)
                let outcome: Outcome =
                    if let refusal {
                        .tokenRefused(refusal)
                    } else if let key {
                        try RSAVerifier(key).isValid(CompactJWS(parsing: token)) ? .accepted : .badSignature
                    } else {
                        .keyRefused
                    }
                let number = try #require(vector["tcId"])
                #expect((outcome == .accepted) == (result == "valid" && isForRS256), "tcId \(number)")
                tallies[Tally(outcome, result), default: 0] += 1
            }
        }
        let expected = [
            Tally(.accepted, "valid"): 8, Tally(.badSignature, "invalid"): 217, Tally(.keyRefused, "invalid"): 3,
            Tally(.tokenRefused(.malformedToken), "invalid"): 27,
            // For HS256, with a character in its header that base64url has not.
            Tally(.tokenRefused(.malformedToken), "valid"): 1,
            Tally(.tokenRefused(.unsupportedAlgorithm), "invalid"): 108,
            Tally(.tokenRefused(.unsupportedAlgorithm), "valid"): 37,
        ]
        #expect(tallies == expected)
        #expect(expected.values.reduce(0, +) == 401)
    }

    /// What `make` makes; nil where it refuses the key.
    private func usable(_ make: () throws(JOSEError) -> RSAPublicKey) throws -> RSAPublicKey? {
        do throws(JOSEError) {
            return try make()
        } catch {
            #expect(error.code == .unusableKey)
            return nil
        }
    }
}
