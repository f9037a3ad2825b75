internal import COpenSSL

/// Checks RS256 signatures of one key: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 7518 §3.3).
///
/// Keeps what libcrypto sets up for a key, which makes a check a third cheaper. So it is not `Sendable`: make one for each
/// thread and key. Each has its own `EVP_PKEY`, so threads share nothing, not even a reference count.
@safe public final class RSAVerifier {
    private let key: KeyHandle
    private let context: OpaquePointer
    private let signatureLength: Int
    private var hash = SHA256Context()
    private var digest = [UInt8](repeating: 0, count: SHA256.digestLength)

    /// Sets up checks with `key`.
    ///
    /// - Throws: `cryptography`.
    public init(_ key: RSAPublicKey) throws(JOSEError) {
        self.key = try KeyHandle(key)
        signatureLength = key.modulus.count
        guard let context = unsafe EVP_PKEY_CTX_new_from_pkey(nil, self.key.pointer, nil) else {
            throw LibCrypto.failure("prepare a verification")
        }
        unsafe self.context = context
        guard unsafe EVP_PKEY_verify_init(context) == 1,
            unsafe EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PADDING) == 1,
            unsafe EVP_PKEY_CTX_set_signature_md(context, EVP_sha256()) == 1
        else { throw LibCrypto.failure("prepare a verification") }
    }

    deinit { unsafe EVP_PKEY_CTX_free(context) }

    /// Whether `signature` is the key's signature over `message`. It must be as long as the modulus: RFC 8017 §8.2.2.
    public func isValid(signature: Span<UInt8>, over message: Span<UInt8>) -> Bool {
        // libcrypto checks the length as well; this keeps such a signature from costing anything.
        guard signature.count == signatureLength else { return false }
        hash.digest(message, into: &digest)
        let outcome = unsafe signature.withUnsafeBufferPointer { signature in
            unsafe digest.withUnsafeBufferPointer { digest in
                unsafe EVP_PKEY_verify(
                    context,
                    signature.baseAddress,
                    signature.count,
                    digest.baseAddress,
                    digest.count
                )
            }
        }
        // Anything but 1 is a refusal, also the negative answers; each leaves an entry in the thread's error queue.
        guard outcome == 1 else {
            ERR_clear_error()
            return false
        }
        return true
    }

    /// Whether the token carries the key's signature over its header and payload.
    public func isValid(_ token: CompactJWS) -> Bool {
        isValid(signature: token.signature.span, over: token.bytes.span.extracting(token.signingInputRange))
    }
}
