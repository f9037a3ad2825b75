package import JOSE

/// A secret that signs webhooks, in the forms of the Standard Webhooks specification 1.0.0.
package enum WebhookSecret: Sendable, CustomStringConvertible {
    /// Shared with the receiver: 24 to 64 bytes.
    case hmac([UInt8])
    /// The receiver has the public key only.
    case ed25519(Ed25519PrivateKey)

    package static let hmacLengths = 24...64

    package static func newHMAC() throws(WebhookError) -> WebhookSecret {
        try .hmac(cryptography { () throws(JOSEError) in try SecureRandom.bytes(32) })
    }

    package static func newEd25519() throws(WebhookError) -> WebhookSecret {
        try .ed25519(cryptography { () throws(JOSEError) in try Ed25519PrivateKey.generate() })
    }

    /// Parses `whsec_` with base64 of the secret, or `whsk_` with base64 of the private key: its 32 bytes, or these and the
    /// public key's.
    ///
    /// - Throws: `malformedSecret`.
    package init(parsing text: String) throws(WebhookError) {
        switch try SerializedKey(parsing: text) {
        case .secret(let bytes): self = .hmac(bytes)
        case .privateKey(let key): self = .ed25519(key)
        case .publicKey:
            throw WebhookError(.malformedSecret, "whpk_ is a public key: write the private key, whsk_…")
        }
    }

    /// The whole secret: `whsec_…`, or `whsk_…` with the private and the public key. Only for sealing.
    package var text: String {
        switch self {
        case .hmac(let bytes): SerializedKey.secretPrefix + Base64.encode(bytes)
        case .ed25519(let key): SerializedKey.privatePrefix + Base64.encode(key.seed + key.publicKey.bytes)
        }
    }

    /// What the receiver gets: `whsec_…`, or `whpk_…` with the public key.
    package var receiverText: String {
        switch self {
        case .hmac: text
        case .ed25519(let key): SerializedKey.publicPrefix + Base64.encode(key.publicKey.bytes)
        }
    }

    package var purpose: SecretPurpose {
        switch self {
        case .hmac: .hmac
        case .ed25519: .ed25519
        }
    }

    /// Eight hexadecimal digits, which the receiver can compute from its text.
    package var fingerprint: String { SealedSecret.fingerprint(of: receiverText) }

    /// No part of the secret.
    package var description: String { "\(purpose.rawValue) \(fingerprint)" }

    /// The signature with its version, as in the header `webhook-signature`.
    func signature(of content: [UInt8]) throws(WebhookError) -> String {
        switch self {
        case .hmac(let key):
            let code = try cryptography { () throws(JOSEError) in try HMACSHA256.code(of: content, key: key) }
            return "v1," + Base64.encode(code)
        case .ed25519(let key):
            return "v1a," + Base64.encode(try cryptography { () throws(JOSEError) in try key.sign(content) })
        }
    }
}

/// A key in the serialisation of the specification.
enum SerializedKey {
    case secret([UInt8])
    case privateKey(Ed25519PrivateKey)
    case publicKey(Ed25519PublicKey)

    static let secretPrefix = "whsec_"
    static let privatePrefix = "whsk_"
    static let publicPrefix = "whpk_"

    init(parsing text: String) throws(WebhookError) {
        do {
            if text.hasPrefix(Self.secretPrefix) {
                let bytes = try Base64.decode(String(text.dropFirst(Self.secretPrefix.count)))
                if WebhookSecret.hmacLengths.contains(bytes.count) {
                    self = .secret(bytes)
                    return
                }
            } else if text.hasPrefix(Self.privatePrefix) {
                let bytes = try Base64.decode(String(text.dropFirst(Self.privatePrefix.count)))
                let key = try Ed25519PrivateKey(seed: Array(bytes.prefix(Ed25519PrivateKey.seedLength)))
                if [[], key.publicKey.bytes].contains(Array(bytes.dropFirst(Ed25519PrivateKey.seedLength))) {
                    self = .privateKey(key)
                    return
                }
            } else if text.hasPrefix(Self.publicPrefix) {
                self = .publicKey(
                    try Ed25519PublicKey(Base64.decode(String(text.dropFirst(Self.publicPrefix.count))))
                )
                return
            }
        } catch {
            guard error.code != .cryptography else { throw WebhookError(.cryptography, error.message) }
        }
        throw WebhookError(
            .malformedSecret,
            "write whsec_ and base64 of 24 to 64 bytes, whsk_ and base64 of an Ed25519 private key, or whpk_ and base64 of a "
                + "public key"
        )
    }
}

func cryptography<Value>(_ work: () throws(JOSEError) -> Value) throws(WebhookError) -> Value {
    do {
        return try work()
    } catch {
        throw WebhookError(.cryptography, error.message)
    }
}
