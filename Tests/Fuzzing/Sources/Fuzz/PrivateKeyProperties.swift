import JOSE

/// A text is read as a key on P-256 that signs, or refused with a reason; nothing asks for a passphrase.
enum PrivateKeyProperties {
    private static let message = Array("message".utf8)

    static func check(_ input: [UInt8]) {
        let text = String(decoding: input, as: UTF8.self)
        do {
            let key = try P256PrivateKey(pem: text)
            guard let signature = try? key.sign(message) else { refuse("a key that was read signs") }
            require(signature.count == 64, "a signature has 64 bytes")
            require(isValid(signature, key.publicKey), "the public half verifies the signature")
            guard let point = try? P256PublicKey(point: key.publicKey.point) else {
                refuse("the public half is a point of the curve")
            }
            require(isValid(signature, point), "the public half is its point")
        } catch {
            // A key whose halves don't fit makes libcrypto fail.
            require([.malformedPEM, .unusableKey, .cryptography].contains(error.code), "a refusal has a reason")
        }
        guard let key = try? P256PublicKey(pem: text) else { return }
        require(key.point.count == 65 && key.point[0] == 4, "a public key is an uncompressed point")
        require(!isValid([UInt8](repeating: 2, count: 64), key), "no signature is made up")
    }

    private static func isValid(_ signature: [UInt8], _ key: P256PublicKey) -> Bool {
        (try? key.isValid(signature: signature, over: message)) == true
    }
}
