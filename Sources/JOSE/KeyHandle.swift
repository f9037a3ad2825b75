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

    /// A key for verification.
    ///
    /// - Throws: `cryptography`.
    init(_ key: RSAPublicKey) throws(JOSEError) {
        guard let context = unsafe EVP_PKEY_CTX_new_from_name(nil, "RSA", nil) else {
            throw LibCrypto.failure("make an RSA key")
        }
        defer { unsafe EVP_PKEY_CTX_free(context) }
        var modulus = LibCrypto.nativeOrder(key.modulus)
        var exponent = LibCrypto.nativeOrder(key.exponentBytes)
        let names: (StaticString, StaticString) = ("n\0", "e\0")
        var made: OpaquePointer?
        unsafe modulus.withUnsafeMutableBufferPointer { modulus in
            unsafe exponent.withUnsafeMutableBufferPointer { exponent in
                unsafe names.0.utf8Start.withMemoryRebound(to: CChar.self, capacity: 2) { modulusName in
                    unsafe names.1.utf8Start.withMemoryRebound(to: CChar.self, capacity: 2) { exponentName in
                        var parameters = unsafe [
                            OSSL_PARAM_construct_BN(modulusName, modulus.baseAddress, modulus.count),
                            OSSL_PARAM_construct_BN(exponentName, exponent.baseAddress, exponent.count),
                            OSSL_PARAM_construct_end(),
                        ]
                        guard unsafe EVP_PKEY_fromdata_init(context) == 1 else { return }
                        _ = unsafe EVP_PKEY_fromdata(context, &made, siwad_public_key_selection, &parameters)
                    }
                }
            }
        }
        try unsafe self.init(owning: made)
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
