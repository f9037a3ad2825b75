internal import COpenSSL

/// An RSA public key for RS256 whose numbers were checked. Create an `RSAVerifier` for each thread to verify with it.
package struct RSAPublicKey: Sendable, Hashable {
    /// In bits. RFC 7518 §3.3 requires 2048 or more; above 8192 verification is too expensive.
    package static let modulusBits = 2048...8192

    /// Big-endian, without leading zeros.
    package let modulus: [UInt8]
    /// Odd, 65537 or more.
    package let exponent: UInt32
    /// The size of the modulus.
    package let bits: Int

    /// Checks the numbers of a key. Both are big-endian.
    ///
    /// - Throws: `unusableKey`.
    package init(modulus: [UInt8], exponent: [UInt8]) throws(JOSEError) {
        guard let first = modulus.first, let last = modulus.last, first != 0 else {
            throw JOSEError(.unusableKey, "the modulus is empty or begins with a zero byte")
        }
        let bits = modulus.count * 8 - first.leadingZeroBitCount
        guard Self.modulusBits.contains(bits) else {
            throw JOSEError(.unusableKey, "the modulus has \(bits) bits, not 2048 to 8192")
        }
        guard last & 1 == 1 else { throw JOSEError(.unusableKey, "the modulus is even") }
        guard let leading = exponent.first, leading != 0, exponent.count <= 4 else {
            throw JOSEError(.unusableKey, "the exponent is empty, begins with a zero byte or is longer than 32 bits")
        }
        let value = exponent.reduce(0 as UInt32) { $0 << 8 | UInt32($1) }
        guard value & 1 == 1, value >= 65537 else {
            throw JOSEError(.unusableKey, "the exponent is even or smaller than 65537")
        }
        self.modulus = modulus
        self.exponent = value
        self.bits = bits
    }

    /// Big-endian, without leading zeros.
    package var exponentBytes: [UInt8] {
        let bytes = [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: exponent >> $0) }
        return Array(bytes.drop { $0 == 0 })
    }
}

/// Verifies RS256 signatures of one key: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 7518 §3.3).
///
/// Keeps a context of libcrypto that is set up for the key and that no other thread may use. So it is not `Sendable`: create
/// one for each thread and key.
@safe package final class RSAVerifier {
    private let context: OpaquePointer
    private let hash = SHA256()
    private var digest = [UInt8](repeating: 0, count: SHA256.digestLength)

    package init(_ key: RSAPublicKey) throws(JOSEError) {
        let handle = try KeyHandle(key)
        guard let context = unsafe EVP_PKEY_CTX_new_from_pkey(nil, handle.pointer, nil) else {
            throw JOSEError.libcrypto(cannot: "prepare a verification")
        }
        guard unsafe EVP_PKEY_verify_init(context) == 1,
            unsafe EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PADDING) == 1,
            unsafe EVP_PKEY_CTX_set_signature_md(context, EVP_sha256()) == 1
        else {
            unsafe EVP_PKEY_CTX_free(context)
            throw JOSEError.libcrypto(cannot: "prepare a verification")
        }
        unsafe self.context = context
    }

    deinit { unsafe EVP_PKEY_CTX_free(context) }

    /// libcrypto compares the whole padded digest (RFC 8017 §8.2.2): a signature has exactly one valid form, as long as the
    /// modulus.
    package func isValid(signature: Span<UInt8>, over message: Span<UInt8>) -> Bool {
        hash.digest(message, into: &digest)
        let result = unsafe signature.withUnsafeBufferPointer { signature in
            unsafe EVP_PKEY_verify(context, signature.baseAddress, signature.count, digest, digest.count)
        }
        guard result == 1 else {
            // As for other failures, its texts may quote input.
            ERR_clear_error()
            return false
        }
        return true
    }

    package func isValid(_ token: CompactJWS) -> Bool {
        isValid(signature: token.signature.span, over: token.bytes.span.extracting(token.signingInputRange))
    }
}
