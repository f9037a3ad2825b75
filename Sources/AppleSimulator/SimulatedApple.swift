package import JOSE

/// Stands in for Apple wherever there is none: signs notifications in exactly the shape that Apple sends, with a key of
/// its own, and publishes that key as Apple publishes its keys.
package struct SimulatedApple: Sendable {
    /// What Apple writes into `iss`.
    package static let appleIssuer = "https://appleid.apple.com"

    /// What it signs with.
    package let key: RSAPrivateKey
    /// The name of the key: the first ten characters of its thumbprint (RFC 7638), so that the key alone is enough to
    /// sign under the name that the key set has.
    package let keyID: String
    /// What it writes into `iss`.
    package let issuer: String
    private let jwk: JSONWebKey

    /// An Apple that signs with `key`.
    ///
    /// - Parameter keyID: the name of the key; by default it is made from the key.
    /// - Throws: `unusableKey` where `keyID` can't be one.
    package init(key: RSAPrivateKey, keyID: String? = nil, issuer: String = appleIssuer) throws(JOSEError) {
        let keyID = keyID ?? String(key.publicKey.thumbprint.prefix(10))
        self.jwk = try key.publicJWK(keyID: keyID)
        self.key = key
        self.keyID = keyID
        self.issuer = issuer
    }

    /// An Apple with a fresh RSA key of 2048 bits.
    ///
    /// - Throws: `cryptography`.
    package static func generate(issuer: String = appleIssuer) throws(JOSEError) -> SimulatedApple {
        try SimulatedApple(key: .generate(), issuer: issuer)
    }

    /// The keys it signs with: one.
    package var keys: [JSONWebKey] { [jwk] }

    /// The key set as Apple's endpoint serves it, in JSON.
    package var keySetJSON: String { "{\"keys\":[\(jwk.json)]}" }

    /// The header in Apple's shape: `kid` and `alg`, no `typ`.
    package var header: String {
        "{\"kid\":\(JSONValue.quoted(keyID)),\"alg\":\"\(CompactJWS.algorithm)\"}"
    }

    /// A signed notification of one event, as Apple would send it.
    ///
    /// - Throws: `cryptography`.
    package func token(for event: SimulatedEvent) throws(JOSEError) -> String {
        try token(claims: event.claims(issuer: issuer))
    }

    /// A signed token with any claims and any header, for trying what a receiver does with what Apple doesn't send.
    ///
    /// - Parameters:
    ///   - claims: the text of the payload, used as it is.
    ///   - header: the text of the header, used as it is; by default Apple's.
    /// - Throws: `cryptography`.
    package func token(claims: String, header: String? = nil) throws(JOSEError) -> String {
        try CompactJWS.signed(header: Array((header ?? self.header).utf8), payload: Array(claims.utf8), by: key)
    }

    /// A signed identity token, which Apple gives to an app when a person signs in: the same issuer, keys and `aud` as a
    /// notification and no `events`.
    ///
    /// - Parameter issuedAt: `iat` in seconds since 1970.
    /// - Throws: `cryptography`.
    package func identityToken(sub: String, app: String, issuedAt: Int64) throws(JOSEError) -> String {
        let (sub, app, issuer) = (JSONValue.quoted(sub), JSONValue.quoted(app), JSONValue.quoted(issuer))
        return try token(
            claims: "{\"iss\":\(issuer),\"aud\":\(app),\"exp\":\(issuedAt &+ 86_400),\"iat\":\(issuedAt),"
                + "\"sub\":\(sub),\"c_hash\":\"pX4zPSN6hE6kCSUnjNVNLQ\",\"auth_time\":\(issuedAt),\"nonce_supported\":true}"
        )
    }

    /// The body of the request in which Apple sends a token.
    package static func body(token: String) -> String {
        "{\"payload\":\(JSONValue.quoted(token))}"
    }
}
