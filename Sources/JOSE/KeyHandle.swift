internal import COpenSSL

/// Owns an `EVP_PKEY`, which nothing changes after it is created.
@safe struct KeyHandle: ~Copyable {
    let pointer: OpaquePointer

    /// Takes ownership of `pointer`, which is nil after a failure of libcrypto.
    init(owning pointer: OpaquePointer?) throws(JOSEError) {
        guard let pointer = unsafe pointer else { throw LibCrypto.failure("create an RSA key") }
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

    deinit { unsafe EVP_PKEY_free(pointer) }

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
            throw LibCrypto.failure("read an RSA key")
        }
        defer { unsafe BN_free(number) }
        let length = unsafe (BN_num_bits(number) + 7) / 8
        var bytes = [UInt8](repeating: 0, count: Int(length))
        // BN_bn2bin writes exactly `length` bytes.
        _ = unsafe BN_bn2bin(number, &bytes)
        return bytes
    }
}
