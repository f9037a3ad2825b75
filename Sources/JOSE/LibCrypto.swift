internal import COpenSSL

/// What every use of libcrypto shares.
enum LibCrypto {
    /// The error for a call that failed.
    static func failure(_ purpose: String) -> JOSEError {
        forgetFailure()
        return JOSEError(
            code: .cryptography,
            message: "libcrypto can't \(purpose): check the OpenSSL installation and its configuration file"
        )
    }

    /// Empties the thread's error queue, whose texts may quote input, and in which a later call might find them.
    static func forgetFailure() {
        ERR_clear_error()
    }
}
