internal import COpenSSL

/// An RSA private key that signs RS256, for the simulator.
package struct RSAPrivateKey: Sendable {
    private let key: SharedKey

    package let publicKey: RSAPublicKey

    private init(_ key: consuming KeyHandle) throws(JOSEError) {
        publicKey = try RSAPublicKey(modulus: key.number("n"), exponent: key.number("e"))
        self.key = SharedKey(key)
    }

    /// Generates a key with the exponent 65537 and 2048 to 8192 bits.
    ///
    /// - Throws: `unusableKey` for another size, `cryptography`.
    package static func generate(bits: Int = 2048) throws(JOSEError) -> RSAPrivateKey {
        guard RSAPublicKey.modulusBits.contains(bits) else {
            throw JOSEError(.unusableKey, "an RSA key has 2048 to 8192 bits")
        }
        guard let context = unsafe EVP_PKEY_CTX_new_from_name(nil, "RSA", nil) else {
            throw JOSEError.libcrypto(cannot: "generate an RSA key")
        }
        defer { unsafe EVP_PKEY_CTX_free(context) }
        var made: OpaquePointer?
        guard unsafe EVP_PKEY_keygen_init(context) == 1,
            unsafe EVP_PKEY_CTX_set_rsa_keygen_bits(context, CInt(bits)) == 1,
            unsafe EVP_PKEY_generate(context, &made) == 1
        else { throw JOSEError.libcrypto(cannot: "generate an RSA key") }
        return try unsafe RSAPrivateKey(KeyHandle(owning: made))
    }

    /// Parses PEM: PKCS #8 or PKCS #1, not encrypted.
    ///
    /// - Throws: `malformedPEM`, `unusableKey`.
    package init(pem: String) throws(JOSEError) {
        let key = try KeyHandle(pem: pem, orThrow: Self.malformedPEM)
        guard key.isA("RSA") else { throw Self.malformedPEM }
        try self.init(key)
    }

    /// The key as PEM: PKCS #8, not encrypted.
    package func pem() throws(JOSEError) -> String { try key.handle.pem() }

    /// Returns the RS256 signature of `message`.
    package func sign(_ message: [UInt8]) throws(JOSEError) -> [UInt8] {
        try key.handle.signature(of: message, isHashed: true, maximumLength: publicKey.modulus.count)
    }

    private static let malformedPEM = JOSEError(
        .malformedPEM,
        "this is not the PEM text of an unencrypted RSA private key: create one with openssl genrsa 2048"
    )
}
