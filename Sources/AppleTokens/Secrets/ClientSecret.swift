package import Basics
package import JOSE

/// A client secret: a token with which an application authenticates to Apple's token endpoint.
package struct ClientSecret: Sendable {
    /// Apple's documentation: at most six months.
    package static let longestLifetime = Duration.seconds(15_777_000)
    /// `aud`, also towards a simulated Apple.
    package static let audience = NotificationPolicy.appleIssuer

    /// The compact JWS.
    package let text: String
    package let issuedAt: WallTime
    package let expiresAt: WallTime

    /// Signs a secret, and verifies it with the public half of the key.
    ///
    /// - Parameter lifetime: up to ``longestLifetime``.
    package init(
        client: ClientID,
        team: TeamID,
        keyID: String,
        key: P256PrivateKey,
        now: WallTime,
        lifetime: Duration
    ) throws(JOSEError) {
        precondition(lifetime > .zero && lifetime <= Self.longestLifetime, "the caller checks the lifetime")
        let seconds = now.wholeSeconds
        issuedAt = WallTime(seconds: seconds)
        expiresAt = WallTime(seconds: seconds + lifetime.components.seconds)
        let header = "{\"alg\":\"ES256\",\"kid\":\(JSONValue.quoted(keyID))}"
        let claims =
            "{\"iss\":\(JSONValue.quoted(team.rawValue)),\"iat\":\(seconds),\"exp\":\(expiresAt.wholeSeconds),"
            + "\"aud\":\"\(Self.audience)\",\"sub\":\(JSONValue.quoted(client.rawValue))}"
        let input = Base64URL.encode(Array(header.utf8)) + "." + Base64URL.encode(Array(claims.utf8))
        let message = Array(input.utf8)
        let signature = try key.sign(message)
        guard try key.publicKey.isValid(signature: signature, over: message) else {
            throw JOSEError(.unusableKey, "the public half of the key doesn't verify its signature")
        }
        text = input + "." + Base64URL.encode(signature)
    }
}
