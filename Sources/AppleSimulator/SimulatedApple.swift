package import JOSE

/// Simulates Apple: signs notifications in exactly Apple's format with its own key, and publishes that key as Apple does.
package struct SimulatedApple: Sendable {
    package static let appleIssuer = "https://appleid.apple.com"

    package let key: RSAPrivateKey
    /// By default the first ten characters of the key's thumbprint (RFC 7638), so that the key determines its name.
    package let keyID: String
    package let issuer: String
    private let jwk: JSONWebKey

    /// - Throws: `unusableKey` if `keyID` is not a valid `kid`.
    package init(key: RSAPrivateKey, keyID: String? = nil, issuer: String = appleIssuer) throws(JOSEError) {
        let keyID = keyID ?? String(key.publicKey.thumbprint.prefix(10))
        self.jwk = try JSONWebKey(keyID: keyID, publicKey: key.publicKey)
        self.key = key
        self.keyID = keyID
        self.issuer = issuer
    }

    /// Generates an RSA key of 2048 bits.
    package static func generate(issuer: String = appleIssuer) throws(JOSEError) -> SimulatedApple {
        try SimulatedApple(key: .generate(), issuer: issuer)
    }

    package var keys: [JSONWebKey] { [jwk] }

    package var keySetJSON: String { Self.keySetJSON(of: [self]) }

    package static func keySetJSON(of apples: [SimulatedApple]) -> String {
        "{\"keys\":[\(apples.map(\.jwk.json).joined(separator: ","))]}"
    }

    /// Two keys to publish before the one that signs. Apple publishes three, so code that always takes the first key, or the
    /// only one, has to fail here too.
    package static func others() throws(JOSEError) -> [SimulatedApple] { [try generate(), try generate()] }

    /// The header in Apple's format: `kid` and `alg`, no `typ`.
    package var header: String {
        "{\"kid\":\(JSONValue.quoted(keyID)),\"alg\":\"\(CompactJWS.algorithm)\"}"
    }

    package func token(for event: SimulatedEvent) throws(JOSEError) -> String {
        try token(claims: event.claims(issuer: issuer))
    }

    /// Signs any claims and any header, to test how a receiver handles what Apple does not send. Both are used as they are.
    package func token(claims: String, header: String? = nil) throws(JOSEError) -> String {
        try CompactJWS.signed(header: Array((header ?? self.header).utf8), payload: Array(claims.utf8), by: key)
    }

    /// Signs an identity token, which Apple issues when a person signs in: with the same issuer, keys and `aud` as a
    /// notification, and without `events`.
    ///
    /// - Parameter issuedAt: `iat` in seconds since 1970.
    package func identityToken(sub: String, app: String, issuedAt: Int64) throws(JOSEError) -> String {
        let (sub, app, issuer) = (JSONValue.quoted(sub), JSONValue.quoted(app), JSONValue.quoted(issuer))
        return try token(
            claims: "{\"iss\":\(issuer),\"aud\":\(app),\"exp\":\(issuedAt &+ 86_400),\"iat\":\(issuedAt),"
                + "\"sub\":\(sub),\"c_hash\":\"pX4zPSN6hE6kCSUnjNVNLQ\",\"auth_time\":\(issuedAt),\"nonce_supported\":true}"
        )
    }

    /// The body of Apple's request with a token.
    package static func body(token: String) -> String {
        "{\"payload\":\(JSONValue.quoted(token))}"
    }
}

/// The contents of a notification before it is signed. Nothing is checked, so it can also be one that Apple would not send.
package struct SimulatedEvent: Sendable, Hashable {
    package var type: String
    package var sub: String
    /// `aud`, the primary App ID.
    package var app: String
    /// `email`; Apple has it in events about email only.
    package var email: String?
    /// `is_private_email`, which Apple sends as a string.
    package var isPrivateEmail: Bool?
    /// `event_time` in milliseconds since 1970.
    package var eventTime: Int64
    /// `iat` in seconds since 1970; `exp` is a day later.
    package var issuedAt: Int64
    /// `jti`, random by default.
    package var id: String

    package init(
        type: String,
        sub: String,
        app: String,
        email: String? = nil,
        isPrivateEmail: Bool? = nil,
        eventTime: Int64,
        issuedAt: Int64,
        id: String = SimulatedEvent.randomID()
    ) {
        self.type = type
        self.sub = sub
        self.app = app
        self.email = email
        self.isPrivateEmail = isPrivateEmail
        self.eventTime = eventTime
        self.issuedAt = issuedAt
        self.id = id
    }

    /// A `jti` in Apple's format: 16 random bytes as 22 characters of base64url.
    package static func randomID() -> String {
        Base64URL.encode((0..<16).map { _ in UInt8.random(in: .min ... .max) })
    }

    /// A `sub` in Apple's format: six digits, 32 hexadecimal digits, four digits.
    package static func randomSubject() -> String {
        func digits(_ count: Int, radix: Int) -> String {
            (0..<count).map { _ in String(Int.random(in: 0..<radix), radix: radix) }.joined()
        }
        return "\(digits(6, radix: 10)).\(digits(32, radix: 16)).\(digits(4, radix: 10))"
    }

    /// The event object in Apple's order of members.
    package var eventObject: String {
        var members = ["\"type\":\(JSONValue.quoted(type))", "\"sub\":\(JSONValue.quoted(sub))"]
        if let email { members.append("\"email\":\(JSONValue.quoted(email))") }
        if let isPrivateEmail { members.append("\"is_private_email\":\"\(isPrivateEmail)\"") }
        members.append("\"event_time\":\(eventTime)")
        return "{\(members.joined(separator: ","))}"
    }

    /// The claims in Apple's order: compact, and `events` a string that contains the event object.
    package func claims(issuer: String) -> String {
        claims(issuer: issuer, events: JSONValue.quoted(eventObject))
    }

    /// The claims with any JSON as `events`.
    package func claims(issuer: String, events: String) -> String {
        "{\"iss\":\(JSONValue.quoted(issuer)),\"aud\":\(JSONValue.quoted(app)),\"exp\":\(issuedAt &+ 86_400),"
            + "\"iat\":\(issuedAt),\"jti\":\(JSONValue.quoted(id)),\"events\":\(events)}"
    }
}
