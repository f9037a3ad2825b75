internal import COpenSSL

/// AES-256 in Galois/Counter Mode (NIST SP 800-38D) with an IV of 96 bits and a tag of 128, as RFC 7518 §5.3 requires it.
package enum AES256GCM {
    package static let keyLength = 32
    package static let ivLength = 12
    package static let tagLength = 16

    /// Encrypts. An IV must never be used twice with a key: two such texts reveal each other and the authentication key.
    ///
    /// - Parameter context: authenticated, but not encrypted.
    package static func encrypt(
        _ text: [UInt8],
        key: [UInt8],
        iv: [UInt8],
        context data: [UInt8]
    ) throws(JOSEError) -> (ciphertext: [UInt8], tag: [UInt8]) {
        precondition(key.count == keyLength && iv.count == ivLength, "the lengths of key and IV are fixed")
        guard let cipher = unsafe EVP_CIPHER_CTX_new() else { throw JOSEError.libcrypto(cannot: "encrypt") }
        defer { unsafe EVP_CIPHER_CTX_free(cipher) }
        var ciphertext = [UInt8](repeating: 0, count: text.count)
        var tag = [UInt8](repeating: 0, count: tagLength)
        var written: CInt = 0
        guard unsafe EVP_EncryptInit_ex2(cipher, EVP_aes_256_gcm(), key, iv, nil) == 1,
            unsafe EVP_EncryptUpdate(cipher, nil, &written, data, CInt(data.count)) == 1,
            // Without an output, libcrypto would take the text for authenticated data.
            unsafe text.isEmpty || EVP_EncryptUpdate(cipher, &ciphertext, &written, text, CInt(text.count)) == 1,
            // Writes nothing, because the mode has no padding.
            unsafe EVP_EncryptFinal_ex(cipher, &tag, &written) == 1,
            unsafe EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, CInt(tagLength), &tag) == 1
        else { throw JOSEError.libcrypto(cannot: "encrypt") }
        return (ciphertext, tag)
    }

    /// Decrypts; nil if text, IV, context or tag are not what the key encrypted.
    package static func decrypt(
        _ ciphertext: [UInt8],
        tag: [UInt8],
        key: [UInt8],
        iv: [UInt8],
        context data: [UInt8]
    ) throws(JOSEError) -> [UInt8]? {
        precondition(key.count == keyLength && iv.count == ivLength, "the lengths of key and IV are fixed")
        guard tag.count == tagLength else { return nil }
        guard let cipher = unsafe EVP_CIPHER_CTX_new() else { throw JOSEError.libcrypto(cannot: "decrypt") }
        defer { unsafe EVP_CIPHER_CTX_free(cipher) }
        var text = [UInt8](repeating: 0, count: ciphertext.count)
        var expected = tag
        var written: CInt = 0
        guard unsafe EVP_DecryptInit_ex2(cipher, EVP_aes_256_gcm(), key, iv, nil) == 1,
            unsafe EVP_DecryptUpdate(cipher, nil, &written, data, CInt(data.count)) == 1,
            unsafe ciphertext.isEmpty
                || EVP_DecryptUpdate(cipher, &text, &written, ciphertext, CInt(ciphertext.count)) == 1,
            unsafe EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG, CInt(tagLength), &expected) == 1
        else { throw JOSEError.libcrypto(cannot: "decrypt") }
        // Compares the tags. The text is worthless, and not returned, unless it succeeds.
        guard unsafe EVP_DecryptFinal_ex(cipher, &expected, &written) == 1 else {
            ERR_clear_error()
            return nil
        }
        return text
    }
}
