internal import COpenSSL

/// HMAC with SHA-256 (RFC 2104, FIPS 198-1).
package enum HMACSHA256 {
    package static func code(of message: [UInt8], key: [UInt8]) throws(JOSEError) -> [UInt8] {
        var code = [UInt8](repeating: 0, count: SHA256.digestLength)
        guard unsafe HMAC(EVP_sha256(), key, CInt(key.count), message, message.count, &code, nil) != nil else {
            throw JOSEError.libcrypto(cannot: "compute an HMAC")
        }
        return code
    }

    /// Derives a key of 32 bytes for a purpose from another key: HKDF (RFC 5869) without salt.
    package static func derivedKey(from key: [UInt8], for purpose: String) throws(JOSEError) -> [UInt8] {
        let salt = [UInt8](repeating: 0, count: SHA256.digestLength)
        let pseudorandom = try code(of: key, key: salt)
        return try code(of: Array(purpose.utf8) + [1], key: pseudorandom)
    }
}
