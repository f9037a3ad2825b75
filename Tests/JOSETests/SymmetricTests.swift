import JOSE
import Testing

@Suite struct SymmetricTests {
    @Test("HMAC-SHA256 agrees with RFC 4231.")
    func hmac() throws {
        let vectors: [([UInt8], [UInt8], String)] = [
            (
                Array(repeating: 0x0B, count: 20), Array("Hi There".utf8),
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
            ),
            (
                Array("Jefe".utf8), Array("what do ya want for nothing?".utf8),
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
            ),
            (
                Array(repeating: 0xAA, count: 131),
                Array("Test Using Larger Than Block-Size Key - Hash Key First".utf8),
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
            ),
            ([], [], "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad"),
        ]
        for (key, message, code) in vectors {
            let digits = try HMACSHA256.code(of: message, key: key).map { byte in
                (byte < 16 ? "0" : "") + String(byte, radix: 16)
            }
            #expect(digits.joined() == code)
        }
    }

    @Test("HKDF agrees with RFC 5869, test case 3, as far as its first 32 bytes.")
    func hkdf() throws {
        let key = [UInt8](repeating: 0x0B, count: 22)
        let derived = try HMACSHA256.derivedKey(from: key, for: "").map { byte in
            (byte < 16 ? "0" : "") + String(byte, radix: 16)
        }
        #expect(derived.joined() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d")
        #expect(try HMACSHA256.derivedKey(from: key, for: "a") != HMACSHA256.derivedKey(from: key, for: "b"))
    }

    @Test("The comparison in constant time is a comparison.")
    func comparison() {
        #expect([UInt8]().isEqualInConstantTime(to: []))
        #expect([1, 2, 3].isEqualInConstantTime(to: [1, 2, 3]))
        #expect(![1, 2, 3].isEqualInConstantTime(to: [1, 2, 4]))
        #expect(![1, 2, 3].isEqualInConstantTime(to: [1, 2]))
    }

    // A comparison that ends at the first difference would take thousands of times longer for the second text. Other work on
    // the machine only lengthens runs, and is not in the shortest of several that alternate.
    @Test("Its time does not depend on where the first difference is.")
    func constantTime() {
        let secret = [UInt8](repeating: 7, count: 4 << 20)
        let texts = [0, secret.count - 1].map { place in
            var text = secret
            text[place] = 8
            return text
        }
        var shortest = [Duration](repeating: .seconds(60), count: 2)
        let clock = ContinuousClock()
        for _ in 0..<7 {
            for (index, text) in texts.enumerated() {
                var isEqual = true
                shortest[index] = min(
                    shortest[index],
                    clock.measure { isEqual = secret.isEqualInConstantTime(to: text) }
                )
                #expect(!isEqual)
            }
        }
        #expect(shortest[0] * 5 > shortest[1] && shortest[1] * 5 > shortest[0], "\(shortest)")
    }

    @Test("Base64 has one text for each byte string.")
    func base64() throws {
        var generator = SeededGenerator(4648)
        for length in 0..<70 {
            let bytes = (0..<length).map { _ in UInt8.random(in: .min ... .max, using: &generator) }
            let text = Base64.encode(bytes)
            #expect(text.utf8.count == (length + 2) / 3 * 4)
            #expect(try Base64.decode(text) == bytes)
        }
        #expect(Base64.encode([0xFB, 0xFF, 0xBF]) == "+/+/")
        for text in ["A", "AA", "AA=", "AB==", "AAB=", "====", "A===", "AA==AA==", "-_-_", "AA==\n", " AAA", "AA=A"] {
            #expect(throws: JOSEError.self, "\(text)") { try Base64.decode(text) }
        }
    }

    @Test("Ed25519 agrees with RFC 8032 and accepts no other signature.")
    func ed25519() throws {
        let seed = try Base64.decode("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
        let key = try Ed25519PrivateKey(seed: seed)
        #expect(Base64.encode(key.publicKey.bytes) == "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
        let signature = try key.sign([])
        #expect(
            Base64.encode(signature)
                == "5VZDAMNgrHKQhuLMgG6CioSHfx645dl02HPgZSJJAVVfuIIVkKM7rMYeOXAc+bRr0lv18FlbviRlUUFDjnoQCw=="
        )
        #expect(try key.publicKey.isValid(signature: signature, over: []))
        #expect(try !key.publicKey.isValid(signature: signature, over: [0]))
        #expect(try !key.publicKey.isValid(signature: [], over: []))
        for place in signature.indices {
            var changed = signature
            changed[place] ^= 1
            if try key.publicKey.isValid(signature: changed, over: []) { Issue.record("byte \(place)") }
        }
        let other = try Ed25519PrivateKey.generate()
        #expect(try !other.publicKey.isValid(signature: signature, over: []))
        #expect(try Ed25519PrivateKey(seed: other.seed).sign([1, 2]) == other.sign([1, 2]))
        #expect(throws: JOSEError.self) { try Ed25519PrivateKey(seed: []) }
        #expect(throws: JOSEError.self) { try Ed25519PublicKey([1]) }
    }
}
