internal import COpenSSL

/// What every use of libcrypto shares.
enum LibCrypto {
    /// The error for a call that failed. Empties the thread's error queue, whose texts may quote input.
    static func failure(_ purpose: String) -> JOSEError {
        ERR_clear_error()
        return JOSEError(
            code: .cryptography,
            message: "libcrypto can't \(purpose): check the OpenSSL installation and its configuration file"
        )
    }

    /// Big-endian bytes in the order of this machine, which is how `OSSL_PARAM` takes integers.
    static func nativeOrder(_ bytes: [UInt8]) -> [UInt8] {
        1.littleEndian == 1 ? bytes.reversed() : bytes
    }
}
