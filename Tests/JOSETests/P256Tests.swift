import JOSE
import Testing

@Suite struct P256Tests {
    private static let made = Result { () throws(JOSEError) in try P256PrivateKey.generate() }

    @Test("A signature has 64 bytes, also where r or s is short, and is accepted by the public half only as it is.")
    func signatures() throws {
        let key = try Self.made.get()
        let other = try P256PrivateKey.generate()
        let message = Array("message".utf8)
        var short = 0
        for _ in 0..<10_000 {
            let signature = try key.sign(message)
            guard signature.count == 64 else {
                Issue.record("\(signature.count) bytes")
                continue
            }
            if signature[0] == 0 || signature[32] == 0 { short += 1 }
            if try !key.publicKey.isValid(signature: signature, over: message) { Issue.record("\(signature)") }
        }
        // Each of the two has a chance of 1 to 256.
        #expect(20...200 ~= short)
        let signature = try key.sign(message)
        #expect(try key.publicKey.isValid(signature: signature, over: message))
        #expect(try !key.publicKey.isValid(signature: signature, over: message + [0]))
        #expect(try !other.publicKey.isValid(signature: signature, over: message))
        #expect(try !key.publicKey.isValid(signature: [], over: message))
        #expect(try !key.publicKey.isValid(signature: signature + [0], over: message))
        #expect(try !key.publicKey.isValid(signature: [UInt8](repeating: 0, count: 64), over: message))
        for place in signature.indices {
            var changed = signature
            changed[place] ^= 1
            if try key.publicKey.isValid(signature: changed, over: message) { Issue.record("byte \(place)") }
        }
    }

    @Test("A key is written and read as PEM, and its public half is read as openssl writes it.")
    func pem() throws {
        let key = try Self.made.get()
        #expect(try P256PrivateKey(pem: key.pem()).publicKey.point == key.publicKey.point)
        #expect(throws: JOSEError.self) { try P256PublicKey(pem: key.pem()) }
        let prefix: [UInt8] = [
            48, 89, 48, 19, 6, 7, 42, 134, 72, 206, 61, 2, 1, 6, 8, 42, 134, 72, 206, 61, 3, 1, 7, 3, 66, 0,
        ]
        func pem(_ content: [UInt8]) -> String {
            "-----BEGIN PUBLIC KEY-----\n\(Base64.encode(content))\n-----END PUBLIC KEY-----\n"
        }
        #expect(try P256PublicKey(pem: pem(prefix + key.publicKey.point)).point == key.publicKey.point)
        for bad in [key.publicKey.point, prefix, prefix + key.publicKey.point + [0], []] {
            let error = #expect(throws: JOSEError.self) { try P256PublicKey(pem: pem(bad)) }
            #expect(error?.code == .malformedPEM)
        }
    }

    @Test("A private key on another curve is refused.")
    func otherCurve() throws {
        // Of P-384, made for this test.
        let pem = """
            -----BEGIN PRIVATE KEY-----
            MIG2AgEAMBAGByqGSM49AgEGBSuBBAAiBIGeMIGbAgEBBDBdLmDjx8pKrovDUjDK
            o4LATYggfzSGPjJUbW1mzud3WMbjqd1D3gX93ul2eJV57tChZANiAATkEQoTjLda
            d+FbTHAcrqH7GvqA8i23zKUZZ7SuTO2XsvRlJd7TMWZAXSHlazq03Au8EeshoASD
            9wXqu9mnF/P6Iwi6g67no5vJ5hZ8uvLAW/BemUQIOpP666xgcY9tjZ4=
            -----END PRIVATE KEY-----
            """
        let error = #expect(throws: JOSEError.self) { try P256PrivateKey(pem: pem) }
        #expect(error?.code == .malformedPEM && error?.message.contains("another curve") == true)
    }

    @Test("A public key is an uncompressed point of the curve.")
    func points() throws {
        let point = try Self.made.get().publicKey.point
        #expect(try P256PublicKey(point: point).point == point)
        var off = point
        off[64] ^= 1
        for bad in [[], Array(point.dropLast()), [2] + point.dropFirst(), off, [UInt8](repeating: 4, count: 65)] {
            #expect(throws: JOSEError.self) { try P256PublicKey(point: bad) }
        }
    }

    @Test(
        "What is no private key on P-256 is refused with the reason, and no passphrase is asked for.",
        arguments: [
            ("", "AuthKey_"), ("x", "AuthKey_"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "AuthKey_"),
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", "encrypted"),
            (
                """
                -----BEGIN PRIVATE KEY-----
                MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
                -----END PRIVATE KEY-----
                """, "elliptic"
            ),
        ]
    )
    func malformed(pem: String, reason: String) throws {
        let error = #expect(throws: JOSEError.self) { try P256PrivateKey(pem: pem) }
        #expect(error?.code == .malformedPEM && error?.message.contains(reason) == true)
        let rsa = try Fixtures.key().pem()
        #expect(throws: JOSEError.self) { try P256PrivateKey(pem: rsa) }
    }

    @Test("A key whose halves don't belong together is refused with the next step.")
    func alteredKey() throws {
        let lines = try P256PrivateKey.generate().pem().split(separator: "\n")
        var content = try Base64.decode(lines.dropFirst().dropLast().joined())
        // In the private half of PKCS #8.
        content[50] ^= 1
        let text = Base64.encode(content)
        let altered = "-----BEGIN PRIVATE KEY-----\n\(text)\n-----END PRIVATE KEY-----\n"
        let error = #expect(throws: JOSEError.self) { try P256PrivateKey(pem: altered) }
        #expect(error?.code == .malformedPEM)
        #expect(error?.message.contains("don't belong together") == true)
    }
}
