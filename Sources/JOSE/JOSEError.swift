/// Why bytes are not what they were taken for, or why libcrypto could not do what was asked of it.
///
/// A message is one sentence that names the mistake and, for JSON, the place. It never holds bytes of the input.
package struct JOSEError: Error, Sendable, Hashable, CustomStringConvertible {
    /// What kind of mistake it is: what a caller decides by.
    package enum Code: String, Sendable, Hashable, CaseIterable {
        /// Not base64url without padding in its one canonical spelling.
        case malformedBase64URL = "malformed-base64url"
        /// Not JSON as the strict reader takes it.
        case malformedJSON = "malformed-json"
        /// JSON, but the value is of another type than the one asked for.
        case typeMismatch = "type-mismatch"
        /// A JSON number that is not exactly a 64-bit integer.
        case notAnInteger = "not-an-integer"
        /// Not three parts of canonical base64url with a header that is a JSON object of at most 1 KiB.
        case malformedToken = "malformed-token"
        /// The header's `alg` is something else than `RS256`.
        case unsupportedAlgorithm = "unsupported-algorithm"
        /// The header asks for processing that is not done here: `crit`, `b64`, `zip` or `enc`.
        case unsupportedHeader = "unsupported-header"
        /// Not a key that signatures may be checked with.
        case unusableKey = "unusable-key"
        /// Not a key set, or one without a single usable key.
        case unusableKeySet = "unusable-key-set"
        /// Not the PEM text of an unencrypted RSA private key.
        case malformedPEM = "malformed-pem"
        /// libcrypto failed where only a lack of memory or a broken installation lets it fail.
        case cryptography
    }

    /// What kind of mistake it is.
    package let code: Code

    /// One sentence on the mistake, without a byte of the input.
    package let message: String

    /// Where in the JSON text the reader stopped, in bytes from its start.
    package let offset: Int?

    /// Makes an error.
    package init(code: Code, message: String, offset: Int? = nil) {
        self.code = code
        self.message = message
        self.offset = offset
    }

    /// The message, with the place where there is one.
    package var description: String {
        guard let offset else { return message }
        return "\(message) (at byte \(offset))"
    }
}
