/// The reason why input is refused, or why a call of libcrypto failed.
///
/// The message is one sentence that names the mistake. It never contains bytes of the input, except the name of a sealing key.
package struct JOSEError: Error, Sendable, Hashable, CustomStringConvertible {
    package enum Code: String, Sendable, Hashable, CaseIterable {
        case malformedBase64 = "malformed-base64"
        case malformedBase64URL = "malformed-base64url"
        case malformedJSON = "malformed-json"
        case typeMismatch = "type-mismatch"
        /// Not three parts of canonical base64url with a header that is a JSON object of at most 1 KiB.
        case malformedToken = "malformed-token"
        case unsupportedAlgorithm = "unsupported-algorithm"
        /// The header requires an extension: `crit`, `b64`, `zip` or `enc`.
        case unsupportedHeader = "unsupported-header"
        case unusableKey = "unusable-key"
        /// Not a key set, or a key set without a usable key.
        case unusableKeySet = "unusable-key-set"
        /// Not the PEM text of an unencrypted RSA private key.
        case malformedPEM = "malformed-pem"
        /// Not lines `NAME:BASE64` of 32 bytes each.
        case malformedSealingKeys = "malformed-sealing-keys"
        /// Not a compact JWE as `SealingKeys` writes it.
        case malformedSealedText = "malformed-sealed-text"
        /// Sealed with a key that is not in the ring.
        case unknownSealingKey = "unknown-sealing-key"
        /// Altered, or sealed with another key of the same name.
        case notAuthentic = "not-authentic"
        /// libcrypto failed for lack of memory or because of a broken installation.
        case cryptography
    }

    package let code: Code
    package let message: String
    /// Where in the JSON text the reader stopped, in bytes from its start.
    package let offset: Int?

    package init(_ code: Code, _ message: String, at offset: Int? = nil) {
        self.code = code
        self.message = message
        self.offset = offset
    }

    package var description: String {
        offset.map { "\(message) (at byte \($0))" } ?? message
    }
}
