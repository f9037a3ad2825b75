internal import COpenSSL

/// What libcrypto keeps between two digests, so that the second need not look the algorithm up again.
@safe struct SHA256Context: ~Copyable {
    private let algorithm: OpaquePointer
    private let context: OpaquePointer

    init() {
        guard let algorithm = unsafe EVP_MD_fetch(nil, "SHA256", nil), let context = unsafe EVP_MD_CTX_new() else {
            preconditionFailure("libcrypto has no SHA-256: check the OpenSSL installation and its configuration file")
        }
        unsafe self.algorithm = algorithm
        unsafe self.context = context
    }

    deinit {
        unsafe EVP_MD_CTX_free(context)
        unsafe EVP_MD_free(algorithm)
    }

    /// Puts the digest of `message` into the first 32 bytes of `digest`.
    mutating func digest(_ message: Span<UInt8>, into digest: inout [UInt8]) {
        precondition(digest.count == SHA256.digestLength, "a SHA-256 digest has 32 bytes")
        let succeeded = unsafe message.withUnsafeBytes { message in
            unsafe digest.withUnsafeMutableBufferPointer { digest in
                unsafe EVP_DigestInit_ex2(context, algorithm, nil) == 1
                    && EVP_DigestUpdate(context, message.baseAddress, message.count) == 1
                    && EVP_DigestFinal_ex(context, digest.baseAddress, nil) == 1
            }
        }
        precondition(succeeded, "libcrypto can't compute SHA-256")
    }
}
