internal import COpenSSL

/// A private key on the curve P-256 that signs ES256 (RFC 7518 §3.4).
package struct P256PrivateKey: Sendable {
    private let key: SharedKey
    package let publicKey: P256PublicKey

    private init(_ handle: consuming KeyHandle) throws(JOSEError) {
        var point = [UInt8](repeating: 0, count: P256PublicKey.pointLength)
        var length = 0
        guard
            unsafe EVP_PKEY_get_octet_string_param(handle.pointer, "pub", &point, point.count, &length) == 1,
            length == point.count
        else { throw JOSEError.libcrypto(cannot: "read an EC key") }
        publicKey = try P256PublicKey(point: point)
        key = SharedKey(handle)
    }

    package static func generate() throws(JOSEError) -> P256PrivateKey {
        guard let context = unsafe EVP_PKEY_CTX_new_from_name(nil, "EC", nil) else {
            throw JOSEError.libcrypto(cannot: "generate an EC key")
        }
        defer { unsafe EVP_PKEY_CTX_free(context) }
        var made: OpaquePointer?
        guard unsafe EVP_PKEY_keygen_init(context) == 1,
            unsafe EVP_PKEY_CTX_set_group_name(context, P256PublicKey.curve) == 1,
            unsafe EVP_PKEY_generate(context, &made) == 1
        else { throw JOSEError.libcrypto(cannot: "generate an EC key") }
        return try unsafe P256PrivateKey(KeyHandle(owning: made))
    }

    /// Parses PEM as in Apple's `AuthKey_KEYID.p8`: PKCS #8, not encrypted.
    ///
    /// - Throws: `malformedPEM` with the reason.
    package init(pem: String) throws(JOSEError) {
        guard !pem.contains("ENCRYPTED") else {
            throw JOSEError(
                .malformedPEM,
                "the key is encrypted: remove the passphrase with openssl pkcs8 -topk8 -nocrypt"
            )
        }
        let malformed = JOSEError(
            .malformedPEM,
            "this is not a private key as PEM: name the file AuthKey_….p8 that Apple let you download"
        )
        let handle = try KeyHandle(pem: pem, orThrow: malformed)
        guard handle.isA("EC") else {
            throw JOSEError(
                .malformedPEM,
                "the key is not one of elliptic curves, but Sign in with Apple signs with ES256"
            )
        }
        var name = [CChar](repeating: 0, count: 64)
        guard unsafe EVP_PKEY_get_group_name(handle.pointer, &name, name.count, nil) == 1,
            name.prefix(while: { $0 != 0 }).elementsEqual(P256PublicKey.curve.utf8.map(CChar.init(bitPattern:)))
        else { throw JOSEError(.malformedPEM, "the key is on another curve than P-256, which ES256 needs") }
        // Apple would refuse every signature of a key that was altered.
        guard Self.hasFittingHalves(handle) else {
            throw JOSEError(
                .malformedPEM,
                "the private and the public half of the key don't belong together: use the file as Apple let you download it"
            )
        }
        try self.init(handle)
    }

    private static func hasFittingHalves(_ handle: borrowing KeyHandle) -> Bool {
        guard let context = unsafe EVP_PKEY_CTX_new_from_pkey(nil, handle.pointer, nil) else { return false }
        defer { unsafe EVP_PKEY_CTX_free(context) }
        guard unsafe EVP_PKEY_pairwise_check(context) == 1 else {
            ERR_clear_error()
            return false
        }
        return true
    }

    /// The key as PEM: PKCS #8, not encrypted, as in Apple's file.
    package func pem() throws(JOSEError) -> String { try key.handle.pem() }

    /// Returns the ES256 signature of `message`: r and s, 32 bytes each. It differs for each call.
    package func sign(_ message: [UInt8]) throws(JOSEError) -> [UInt8] {
        // DER of two numbers of at most 33 bytes.
        try ECDSASignature.raw(key.handle.signature(of: message, isHashed: true, maximumLength: 72))
    }
}

/// A public key on the curve P-256.
package struct P256PublicKey: Sendable {
    static let curve = "prime256v1"
    static let pointLength = 65
    /// SubjectPublicKeyInfo (RFC 5480 §2) up to the point.
    private static let prefix: [UInt8] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01, 0x06, 0x08, 0x2A, 0x86, 0x48,
        0xCE, 0x3D, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ]

    /// Uncompressed: 4, then both coordinates (SEC 1 §2.3.3).
    package let point: [UInt8]
    private let key: SharedKey

    /// - Throws: `unusableKey` unless it is a point of the curve.
    package init(point: [UInt8]) throws(JOSEError) {
        let unusable = JOSEError(.unusableKey, "it is not an uncompressed point of the curve P-256")
        guard point.count == Self.pointLength, point[0] == 4 else { throw unusable }
        let made = unsafe (Self.prefix + point).withUnsafeBufferPointer { text in
            var start = text.baseAddress
            return unsafe d2i_PUBKEY(nil, &start, text.count)
        }
        guard unsafe made != nil else {
            ERR_clear_error()
            throw unusable
        }
        self.point = point
        key = SharedKey(try unsafe KeyHandle(owning: made))
    }

    /// Parses PEM as `openssl pkey -pubout` writes it: SubjectPublicKeyInfo.
    ///
    /// - Throws: `malformedPEM`.
    package init(pem: String) throws(JOSEError) {
        let malformed = JOSEError(.malformedPEM, "this is not a public key on the curve P-256 as PEM")
        let lines = pem.split(whereSeparator: \.isNewline)
        guard lines.first == "-----BEGIN PUBLIC KEY-----", lines.last == "-----END PUBLIC KEY-----" else {
            throw malformed
        }
        do {
            let content = try Base64.decode(lines.dropFirst().dropLast().joined())
            guard content.starts(with: Self.prefix) else { throw malformed }
            try self.init(point: Array(content.dropFirst(Self.prefix.count)))
        } catch {
            throw malformed
        }
    }

    /// - Parameter signature: r and s, 32 bytes each. No other form is accepted.
    package func isValid(signature: [UInt8], over message: [UInt8]) throws(JOSEError) -> Bool {
        guard let encoded = ECDSASignature.encoded(signature) else { return false }
        guard let context = unsafe EVP_PKEY_CTX_new_from_pkey(nil, key.handle.pointer, nil) else {
            throw JOSEError.libcrypto(cannot: "verify a signature")
        }
        defer { unsafe EVP_PKEY_CTX_free(context) }
        let digest = SHA256.digest(message.span)
        guard unsafe EVP_PKEY_verify_init(context) == 1 else {
            throw JOSEError.libcrypto(cannot: "verify a signature")
        }
        let result = unsafe EVP_PKEY_verify(context, encoded, encoded.count, digest, digest.count)
        if result != 1 { ERR_clear_error() }
        return result == 1
    }
}

/// The two forms of an ECDSA signature: DER in libcrypto, and r and s with a fixed length in JOSE (RFC 7518 §3.4).
private enum ECDSASignature {
    static let half = 32

    static func raw(_ encoded: [UInt8]) throws(JOSEError) -> [UInt8] {
        let made = unsafe encoded.withUnsafeBufferPointer { text in
            var start = text.baseAddress
            return unsafe d2i_ECDSA_SIG(nil, &start, text.count)
        }
        guard let signature = unsafe made else { throw JOSEError.libcrypto(cannot: "read a signature") }
        defer { unsafe ECDSA_SIG_free(signature) }
        var numbers = (r: [UInt8](repeating: 0, count: half), s: [UInt8](repeating: 0, count: half))
        // The padded form keeps leading zeros, which DER has not.
        guard unsafe BN_bn2binpad(ECDSA_SIG_get0_r(signature), &numbers.r, CInt(half)) == CInt(half),
            unsafe BN_bn2binpad(ECDSA_SIG_get0_s(signature), &numbers.s, CInt(half)) == CInt(half)
        else { throw JOSEError.libcrypto(cannot: "read a signature") }
        return numbers.r + numbers.s
    }

    /// nil unless it has 64 bytes.
    static func encoded(_ raw: [UInt8]) -> [UInt8]? {
        guard raw.count == half * 2 else { return nil }
        let content = integer(raw.prefix(half)) + integer(raw.suffix(half))
        return [0x30, UInt8(content.count)] + content
    }

    /// A number in DER: without leading zeros, but positive.
    private static func integer(_ bytes: ArraySlice<UInt8>) -> [UInt8] {
        let digits = bytes.drop { $0 == 0 }
        let content = (digits.first ?? 0x80) < 0x80 ? Array(digits) : [0] + digits
        return [0x02, UInt8(content.count)] + content
    }
}
