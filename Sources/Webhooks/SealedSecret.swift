import Basics
package import JOSE

/// What a secret of an endpoint is for: the column `purpose` of `siwa.endpoint_secrets`.
package enum SecretPurpose: String, Sendable, Hashable, CaseIterable {
    case hmac
    case ed25519
    /// The value of the header `Authorization` that the receiver expects.
    case authorization
    /// Stored as its SHA-256 and never sealed.
    case pollToken = "poll-token"
}

/// A secret of an endpoint with the row of `siwa.endpoint_secrets` that it belongs to.
///
/// The sealed content names endpoint, purpose and generation. Opening compares them with the row, so that a sealed text that
/// was copied to another row opens nothing.
package struct SealedSecret: Sendable, Hashable {
    package let endpoint: Int32
    package let purpose: SecretPurpose
    package let generation: Int32

    package init(endpoint: Int32, purpose: SecretPurpose, generation: Int32) {
        self.endpoint = endpoint
        self.purpose = purpose
        self.generation = generation
    }

    /// - Parameter secret: `WebhookSecret.text`, or the text of another purpose.
    package func seal(_ secret: String, with keys: SealingKeys) throws(WebhookError) -> [UInt8] {
        try cryptography { () throws(JOSEError) in try keys.seal(Array(content(secret).utf8)) }
    }

    /// - Throws: `unopenedSecret`, `foreignSecret`.
    package func open(_ sealed: [UInt8], with keys: SealingKeys) throws(WebhookError) -> String {
        let bytes: [UInt8]
        let secret: String?
        do {
            bytes = try keys.open(sealed)
            secret = try JSONValue(parsing: bytes)["secret"]?.string
        } catch {
            throw WebhookError(.unopenedSecret, error.message)
        }
        // The content has one form, so comparing it as a whole compares each member.
        guard let secret, bytes == Array(content(secret).utf8) else {
            throw WebhookError(.foreignSecret, "it was sealed for another endpoint, purpose or generation")
        }
        return secret
    }

    /// Opens a secret that signs.
    ///
    /// - Throws: Also `malformedSecret`.
    package func openWebhookSecret(_ sealed: [UInt8], with keys: SealingKeys) throws(WebhookError) -> WebhookSecret {
        try WebhookSecret(parsing: open(sealed, with: keys))
    }

    /// The first four bytes of the SHA-256 of a secret's text, in hexadecimal, to tell secrets apart: eight digits.
    package static func fingerprint(of text: String) -> String {
        SHA256.digest(Array(text.utf8).span).prefix(4).hexadecimal
    }

    private func content(_ secret: String) -> String {
        JSONValue.object([
            .init("endpoint", .number(JSONNumber(Int64(endpoint)))), .init("purpose", .string(purpose.rawValue)),
            .init("generation", .number(JSONNumber(Int64(generation)))), .init("secret", .string(secret)),
        ]).compactText
    }
}
