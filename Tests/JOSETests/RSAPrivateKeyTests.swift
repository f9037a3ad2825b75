import JOSE
import Testing

@Suite struct RSAPrivateKeyTests {
    @Test("A key survives its PEM text.")
    func roundTrip() throws {
        let key = try Fixtures.key()
        let pem = try key.pem()
        #expect(pem.hasPrefix("-----BEGIN PRIVATE KEY-----\n"))
        #expect(pem.hasSuffix("-----END PRIVATE KEY-----\n"))
        let again = try RSAPrivateKey(pem: pem)
        #expect(again.publicKey == key.publicKey)
        #expect(try again.sign([1, 2, 3]) == key.sign([1, 2, 3]))
        #expect(try again.pem() == pem)
    }

    @Test("A fresh key has 2048 bits, the exponent 65537, and makes a key that a set takes.")
    func generated() throws {
        let key = try Fixtures.key()
        #expect(key.publicKey.bits == 2048)
        #expect(key.publicKey.exponent == 65537)
        let keyID = String(key.publicKey.thumbprint.prefix(10))
        let set = try JSONWebKeySet(
            parsing: Array(JSONWebKeySet([JSONWebKey(keyID: keyID, publicKey: key.publicKey)]).json.utf8)
        )
        #expect(set.key(keyID)?.publicKey == key.publicKey)
        #expect(throws: JOSEError.self) { try JSONWebKey(keyID: "", publicKey: key.publicKey) }
    }

    @Test(
        "A size out of range is refused before anything is computed.",
        arguments: [Int.min, -1, 0, 512, 1024, 2047, 8193, Int.max]
    )
    func sizes(bits: Int) {
        #expect(throws: JOSEError.self) { try RSAPrivateKey.generate(bits: bits) }
    }

    @Test(
        "What is no PEM text of an unencrypted RSA private key is refused, and no passphrase is asked for.",
        arguments: [
            "", "x", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            """
            -----BEGIN PRIVATE KEY-----
            MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
            -----END PRIVATE KEY-----
            """,
            """
            -----BEGIN RSA PRIVATE KEY-----
            Proc-Type: 4,ENCRYPTED
            DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF

            AAAAAAAAAAAAAAAAAAAAAA==
            -----END RSA PRIVATE KEY-----
            """,
        ]
    )
    func malformed(pem: String) {
        #expect(throws: JOSEError.self) { try RSAPrivateKey(pem: pem) }
    }
}
