internal import COpenSSL

/// An `EVP_PKEY` of ours, freed with this value. Nothing changes the key after it is made.
@safe struct KeyHandle: ~Copyable {
    let pointer: OpaquePointer

    /// Takes over `pointer`, which may be nil where libcrypto failed.
    ///
    /// - Throws: `cryptography`.
    init(owning pointer: OpaquePointer?) throws(JOSEError) {
        guard let pointer = unsafe pointer else { throw LibCrypto.failure("make an RSA key") }
        unsafe self.pointer = pointer
    }

    deinit { unsafe EVP_PKEY_free(pointer) }

    /// A number of the key by its name in libcrypto, big-endian, without leading zeros.
    ///
    /// - Throws: `cryptography`.
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
