internal import COpenSSL

/// A private key of Ed25519 (RFC 8032).
package struct Ed25519PrivateKey: Sendable {
    package static let seedLength = 32

    /// The key as RFC 8032 §5.1.5 defines it: 32 random bytes.
    package let seed: [UInt8]
    package let publicKey: Ed25519PublicKey
    private let key: SharedKey

    package static func generate() throws(JOSEError) -> Ed25519PrivateKey {
        try Ed25519PrivateKey(seed: SecureRandom.bytes(seedLength))
    }

    /// - Throws: `unusableKey` unless the seed has 32 bytes.
    package init(seed: [UInt8]) throws(JOSEError) {
        guard seed.count == Self.seedLength else { throw JOSEError(.unusableKey, "an Ed25519 key has 32 bytes") }
        let handle = try unsafe KeyHandle(
            owning: EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nil, seed, seed.count)
        )
        var raw = [UInt8](repeating: 0, count: Ed25519PublicKey.length)
        var length = raw.count
        guard unsafe EVP_PKEY_get_raw_public_key(handle.pointer, &raw, &length) == 1, length == raw.count else {
            throw JOSEError.libcrypto(cannot: "read an Ed25519 key")
        }
        self.seed = seed
        key = SharedKey(handle)
        publicKey = try Ed25519PublicKey(raw)
    }

    /// Returns the signature of `message`: 64 bytes, the same for each call.
    package func sign(_ message: [UInt8]) throws(JOSEError) -> [UInt8] {
        try key.handle.signature(of: message, isHashed: false, maximumLength: Ed25519PublicKey.signatureLength)
    }
}

/// A public key of Ed25519 (RFC 8032).
package struct Ed25519PublicKey: Sendable {
    package static let length = 32
    static let signatureLength = 64

    package let bytes: [UInt8]
    private let key: SharedKey

    /// - Throws: `unusableKey` unless there are 32 bytes.
    package init(_ bytes: [UInt8]) throws(JOSEError) {
        guard bytes.count == Self.length else { throw JOSEError(.unusableKey, "an Ed25519 key has 32 bytes") }
        self.bytes = bytes
        key = try SharedKey(
            unsafe KeyHandle(owning: EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nil, bytes, bytes.count))
        )
    }

    package func isValid(signature: [UInt8], over message: [UInt8]) throws(JOSEError) -> Bool {
        guard let context = unsafe EVP_MD_CTX_new() else { throw JOSEError.libcrypto(cannot: "verify a signature") }
        defer { unsafe EVP_MD_CTX_free(context) }
        guard unsafe EVP_DigestVerifyInit(context, nil, nil, nil, key.handle.pointer) == 1 else {
            throw JOSEError.libcrypto(cannot: "verify a signature")
        }
        let result = unsafe EVP_DigestVerify(context, signature, signature.count, message, message.count)
        if result != 1 { ERR_clear_error() }
        return result == 1
    }
}
