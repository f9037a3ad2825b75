internal import COpenSSL

/// SHA-256 (FIPS 180-4).
public enum SHA256 {
    /// The length of a digest in bytes.
    public static let digestLength = 32

    /// The 32 bytes of the digest of `message`.
    public static func digest(_ message: Span<UInt8>) -> [UInt8] {
        var digest = [UInt8](repeating: 0, count: digestLength)
        var hash = SHA256Context()
        hash.digest(message, into: &digest)
        return digest
    }
}
