internal import COpenSSL

/// SHA-256 (FIPS 180-4).
package enum SHA256 {
    /// The length of a digest in bytes.
    package static let digestLength = 32

    /// The 32 bytes of the digest of `message`.
    package static func digest(_ message: Span<UInt8>) -> [UInt8] {
        var digest = [UInt8](repeating: 0, count: digestLength)
        var hash = SHA256Context()
        hash.digest(message, into: &digest)
        return digest
    }
}
