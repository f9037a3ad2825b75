internal import COpenSSL

extension JOSEError {
    /// Also empties the thread's error queue. Its texts may quote input, and a later call could report them.
    static func libcrypto(cannot purpose: String) -> JOSEError {
        ERR_clear_error()
        let advice = "check the OpenSSL installation and its configuration file"
        return JOSEError(.cryptography, "libcrypto cannot \(purpose): \(advice)")
    }
}

/// Owns an `EVP_PKEY`, which nothing changes after it is created.
@safe struct KeyHandle: ~Copyable {
    let pointer: OpaquePointer

    /// Takes ownership of `pointer`, which is nil after a failure of libcrypto.
    init(owning pointer: OpaquePointer?) throws(JOSEError) {
        guard let pointer = unsafe pointer else { throw JOSEError.libcrypto(cannot: "create a key") }
        unsafe self.pointer = pointer
    }

    init(_ key: RSAPublicKey) throws(JOSEError) {
        let text = Self.der(0x30, Self.der(integer: key.modulus) + Self.der(integer: key.exponentBytes))
        let made = unsafe text.withUnsafeBufferPointer { text in
            var start = text.baseAddress
            return unsafe d2i_PublicKey(EVP_PKEY_RSA, nil, &start, text.count)
        }
        try unsafe self.init(owning: made)
    }

    /// Parses a private key as PEM, not encrypted.
    ///
    /// - Throws: `malformed` for other text.
    init(pem: String, orThrow malformed: JOSEError) throws(JOSEError) {
        let text = Array(pem.utf8)
        guard let length = CInt(exactly: text.count) else { throw malformed }
        let made = unsafe text.withUnsafeBytes { text -> OpaquePointer? in
            guard let source = unsafe BIO_new_mem_buf(text.baseAddress, length) else { return nil }
            defer { unsafe BIO_free(source) }
            // Without a callback libcrypto would ask for a passphrase on the terminal.
            return unsafe PEM_read_bio_PrivateKey(source, nil, { _, _, _, _ in -1 }, nil)
        }
        guard unsafe made != nil else {
            ERR_clear_error()
            throw malformed
        }
        try unsafe self.init(owning: made)
    }

    deinit { unsafe EVP_PKEY_free(pointer) }

    /// True for a type of libcrypto, such as `RSA`.
    func isA(_ type: String) -> Bool { unsafe EVP_PKEY_is_a(pointer, type) == 1 }

    /// The private key as PEM: PKCS #8, not encrypted.
    func pem() throws(JOSEError) -> String {
        guard let sink = unsafe BIO_new(BIO_s_mem()) else { throw JOSEError.libcrypto(cannot: "write a key") }
        defer { unsafe BIO_free(sink) }
        guard unsafe PEM_write_bio_PKCS8PrivateKey(sink, pointer, nil, nil, 0, nil, nil) == 1 else {
            throw JOSEError.libcrypto(cannot: "write a key")
        }
        var text = [UInt8](repeating: 0, count: unsafe BIO_ctrl_pending(sink))
        let read = unsafe BIO_read(sink, &text, CInt(text.count))
        guard Int(read) == text.count else { throw JOSEError.libcrypto(cannot: "write a key") }
        return String(decoding: text, as: UTF8.self)
    }

    /// Signs a message: with PKCS #1 v1.5 for an RSA key, which is libcrypto's default, and in DER for an EC key.
    ///
    /// - Parameter isHashed: signs the SHA-256 of the message; false for Ed25519, which has a digest of its own.
    func signature(of message: [UInt8], isHashed: Bool, maximumLength: Int) throws(JOSEError) -> [UInt8] {
        guard let context = unsafe EVP_MD_CTX_new() else { throw JOSEError.libcrypto(cannot: "sign") }
        defer { unsafe EVP_MD_CTX_free(context) }
        var signature = [UInt8](repeating: 0, count: maximumLength)
        var length = maximumLength
        guard unsafe EVP_DigestSignInit(context, nil, isHashed ? EVP_sha256() : nil, nil, pointer) == 1,
            unsafe EVP_DigestSign(context, &signature, &length, message, message.count) == 1,
            length <= maximumLength
        else { throw JOSEError.libcrypto(cannot: "sign") }
        return Array(signature.prefix(length))
    }

    /// A positive integer in DER, from a big-endian number without leading zeros.
    private static func der(integer number: [UInt8]) -> [UInt8] {
        der(0x02, (number.first ?? 0) < 0x80 ? number : [0] + number)
    }

    /// DER writes lengths of 128 to 255 in another form, which no element of an accepted key has.
    private static func der(_ tag: UInt8, _ content: [UInt8]) -> [UInt8] {
        let length = UInt16(content.count)
        return (length < 128 ? [tag, UInt8(length)] : [tag, 0x82, UInt8(length >> 8), UInt8(length & 0xFF)]) + content
    }

    /// Returns a number of the key by its name in libcrypto, big-endian, without leading zeros.
    func number(_ name: String) throws(JOSEError) -> [UInt8] {
        var number: OpaquePointer?
        guard unsafe EVP_PKEY_get_bn_param(pointer, name, &number) == 1, let number = unsafe number else {
            throw JOSEError.libcrypto(cannot: "read an RSA key")
        }
        defer { unsafe BN_free(number) }
        let length = unsafe (BN_num_bits(number) + 7) / 8
        var bytes = [UInt8](repeating: 0, count: Int(length))
        // BN_bn2bin writes exactly `length` bytes.
        _ = unsafe BN_bn2bin(number, &bytes)
        return bytes
    }
}

/// Shares one key among copies and threads. Unchecked, because the compiler does not know that libcrypto allows threads to use
/// a key concurrently as long as none changes it (openssl-threads(7)), and the handle is constant.
final class SharedKey: @unchecked Sendable {
    let handle: KeyHandle

    init(_ handle: consuming KeyHandle) { self.handle = handle }
}

/// Random bytes for keys, initialisation vectors and secrets.
package enum SecureRandom {
    package static func bytes(_ count: Int) throws(JOSEError) -> [UInt8] {
        var bytes = [UInt8](repeating: 0, count: count)
        guard unsafe RAND_bytes(&bytes, CInt(count)) == 1 else {
            throw JOSEError.libcrypto(cannot: "make random bytes")
        }
        return bytes
    }
}

extension [UInt8] {
    /// True if both have the same bytes. The time depends only on the lengths, so that it tells nothing about a secret.
    package func isEqualInConstantTime(to other: [UInt8]) -> Bool {
        unsafe count == other.count && CRYPTO_memcmp(self, other, count) == 0
    }
}

/// SHA-256 (FIPS 180-4). A value keeps the algorithm, which libcrypto would otherwise look up for each digest.
@safe package struct SHA256: ~Copyable {
    /// In bytes.
    package static let digestLength = 32

    /// Of the libcrypto that computes it, such as `3.0.17`.
    package static var libraryVersion: String { unsafe String(cString: OpenSSL_version(OPENSSL_FULL_VERSION_STRING)) }

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

    package static func digest(_ message: Span<UInt8>) -> [UInt8] {
        var digest = [UInt8](repeating: 0, count: digestLength)
        SHA256().digest(message, into: &digest)
        return digest
    }

    func digest(_ message: Span<UInt8>, into digest: inout [UInt8]) {
        precondition(digest.count == Self.digestLength, "a SHA-256 digest has 32 bytes")
        let succeeded = unsafe message.withUnsafeBytes { message in
            unsafe digest.withUnsafeMutableBufferPointer { digest in
                unsafe EVP_DigestInit_ex2(context, algorithm, nil) == 1
                    && EVP_DigestUpdate(context, message.baseAddress, message.count) == 1
                    && EVP_DigestFinal_ex(context, digest.baseAddress, nil) == 1
            }
        }
        precondition(succeeded, "libcrypto cannot compute SHA-256")
    }
}
