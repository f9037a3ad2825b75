import JOSE
import Testing

@Suite struct RSAVerifierTests {
    @Test("A signature holds for its own message and key, again and again with one verifier.")
    func ownSignature() throws {
        let key = try Fixtures.key()
        let verifier = try RSAVerifier(key.publicKey)
        let stranger = try RSAVerifier(RSAPrivateKey.generate().publicKey)
        for length in [0, 1, 63, 64, 65, 1000] {
            let message = [UInt8](repeating: 0x61, count: length)
            let signature = try key.sign(message)
            let other = message + [0]
            let answers = [
                verifier.isValid(signature: signature.span, over: message.span),
                verifier.isValid(signature: signature.span, over: other.span),
                stranger.isValid(signature: signature.span, over: message.span),
                verifier.isValid(signature: signature.span, over: message.span),
            ]
            #expect(answers == [true, false, false, true])
        }
    }

    @Test("A signature of another length than the modulus is refused, also with zeros before or behind it.")
    func signatureLength() throws {
        let key = try Fixtures.key()
        let verifier = try RSAVerifier(key.publicKey)
        let message = Array("message".utf8)
        let signature = try key.sign(message)
        for changed in [
            [], [0] + signature, signature + [0], Array(signature.dropLast()), Array(signature.dropFirst()),
        ] {
            let answer = verifier.isValid(signature: changed.span, over: message.span)
            #expect(!answer)
        }
    }

    @Test("A signature that is zero, one, the modulus or beyond it is refused.")
    func trivialSignatures() throws {
        let key = try Fixtures.key().publicKey
        let verifier = try RSAVerifier(key)
        let message = Array("message".utf8)
        let zero = [UInt8](repeating: 0, count: 256)
        var one = zero
        one[255] = 1
        var beforeModulus = key.modulus
        beforeModulus[255] -= 1
        for signature in [zero, one, key.modulus, beforeModulus, [UInt8](repeating: 0xFF, count: 256)] {
            let answer = verifier.isValid(signature: signature.span, over: message.span)
            #expect(!answer)
        }
    }

    @Test("A signature plus the modulus, which is the same number to a lax verifier, is refused.")
    func signaturePlusModulus() throws {
        var key = try Fixtures.key()
        // Below three quarters of what fits into its bytes, so that many sums do as well.
        while key.publicKey.modulus[0] >= 0xC0 { key = try RSAPrivateKey.generate() }
        let verifier = try RSAVerifier(key.publicKey)
        var sums = 0
        for number in 0..<64 {
            let message = Array("message \(number)".utf8)
            var sum = try key.sign(message)
            var carry = 0
            for index in sum.indices.reversed() {
                let digit = Int(sum[index]) + Int(key.publicKey.modulus[index]) + carry
                sum[index] = UInt8(truncatingIfNeeded: digit)
                carry = digit >> 8
            }
            // Only where it is no longer than the modulus does anything but its length tell.
            if carry == 0 { sums += 1 }
            let extended = carry == 0 ? sum : [UInt8(carry)] + sum
            let answer = verifier.isValid(signature: extended.span, over: message.span)
            #expect(!answer)
        }
        #expect(sums > 0)
    }

    @Test("Threads with verifiers of their own check the same key at the same time.")
    func threads() async throws {
        let key = try Fixtures.key()
        let message = Array("message".utf8)
        let signature = try key.sign(message)
        let publicKey = key.publicKey
        try await withThrowingTaskGroup(of: Bool.self) { group in
            for _ in 0..<8 {
                group.addTask {
                    let verifier = try RSAVerifier(publicKey)
                    for _ in 0..<200 where !verifier.isValid(signature: signature.span, over: message.span) {
                        return false
                    }
                    return try key.sign(message) == signature
                }
            }
            for try await isValid in group { #expect(isValid) }
        }
    }

    @Test("SHA-256 gives the digests of FIPS 180-4.")
    func digests() {
        func hexadecimal(_ text: String) -> String {
            let bytes = Array(text.utf8)
            return SHA256.digest(bytes.span).map { String(0x100 + Int($0), radix: 16).dropFirst() }.joined()
        }
        #expect(hexadecimal("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
        #expect(hexadecimal("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        #expect(
            hexadecimal("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")
                == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
        )
    }
}
