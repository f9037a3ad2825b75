internal import COpenSSL

/// Verifies RS256 signatures of one key: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 7518 §3.3).
///
/// Keeps a context of libcrypto that is set up for the key and that no other thread may use. So it is not `Sendable`: create
/// one for each thread and key.
@safe package final class RSAVerifier {
    private let context: OpaquePointer
    private var hash = SHA256Context()
    private var digest = [UInt8](repeating: 0, count: SHA256.digestLength)

    /// - Throws: `cryptography`.
    package init(_ key: RSAPublicKey) throws(JOSEError) {
        let handle = try KeyHandle(key)
        guard let context = unsafe EVP_PKEY_CTX_new_from_pkey(nil, handle.pointer, nil) else {
            throw LibCrypto.failure("prepare a verification")
        }
        guard unsafe EVP_PKEY_verify_init(context) == 1,
            unsafe EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PADDING) == 1,
            unsafe EVP_PKEY_CTX_set_signature_md(context, EVP_sha256()) == 1
        else {
            unsafe EVP_PKEY_CTX_free(context)
            throw LibCrypto.failure("prepare a verification")
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
            LibCrypto.forgetFailure()
            return false
        }
        return true
    }

    package func isValid(_ token: CompactJWS) -> Bool {
        isValid(signature: token.signature.span, over: token.bytes.span.extracting(token.signingInputRange))
    }
}
