/// Checks RS256 signatures of one key: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 7518 §3.3).
///
/// Keeps what libcrypto sets up for a key, and shares nothing with other threads. So it is not `Sendable`: make one for
/// each thread and key.
package final class RSAVerifier {
    private let operation: RSAPublicOperation
    private var hash = SHA256Context()
    private var digest = [UInt8](repeating: 0, count: SHA256.digestLength)
    /// What a signature has to say up to the digest at its end: EMSA-PKCS1-v1_5, RFC 8017 §9.2.
    private let encoding: [UInt8]
    /// What one does say.
    private var recovered: [UInt8]

    /// Sets up checks with `key`.
    ///
    /// - Throws: `cryptography`.
    package init(_ key: RSAPublicKey) throws(JOSEError) {
        operation = try RSAPublicOperation(key)
        let padding = key.modulus.count - 3 - Self.digestInfo.count - SHA256.digestLength
        encoding = [0, 1] + [UInt8](repeating: 0xFF, count: padding) + [0] + Self.digestInfo
        recovered = [UInt8](repeating: 0, count: key.modulus.count)
    }

    /// Whether `signature` is the key's signature over `message`. It must be as long as the modulus: RFC 8017 §8.2.2.
    ///
    /// What it says is compared with what it has to say as a whole. Nothing in it is interpreted, so nothing in it can be
    /// chosen: neither the length of the padding nor the form of the digest's name nor what stands behind the digest.
    package func isValid(signature: Span<UInt8>, over message: Span<UInt8>) -> Bool {
        guard signature.count == recovered.count, operation.recover(signature, into: &recovered) else {
            LibCrypto.forgetFailure()
            return false
        }
        hash.digest(message, into: &digest)
        let recovered = recovered
        let said = recovered.span
        return said.extracting(..<encoding.count).hasBytes(encoding)
            && said.extracting(encoding.count...).hasBytes(digest)
    }

    /// Whether the token carries the key's signature over its header and payload.
    package func isValid(_ token: CompactJWS) -> Bool {
        isValid(signature: token.signature.span, over: token.bytes.span.extracting(token.signingInputRange))
    }

    /// The DER of a DigestInfo with SHA-256 up to the digest: RFC 8017 §9.2, note 1.
    private static let digestInfo: [UInt8] = [
        0x30, 0x31, 0x30, 0x0D, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00, 0x04,
        0x20,
    ]
}

extension Span<UInt8> {
    fileprivate func hasBytes(_ bytes: [UInt8]) -> Bool {
        let bytes = bytes.span
        guard count == bytes.count else { return false }
        var difference: UInt8 = 0
        for index in indices { difference |= self[index] ^ bytes[index] }
        return difference == 0
    }
}
