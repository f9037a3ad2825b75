import Basics
package import JOSE

/// Checks a client secret as strictly as Apple's documentation describes it (“Creating a client secret”, TN3107).
package struct ClientSecretCheck: Sendable {
    /// A key that a team registered.
    package struct Key: Sendable {
        let team: String
        /// The primary App ID; nil: for all apps of the team.
        let app: String?
        package let id: String
        let publicKey: P256PublicKey

        package init(team: String, app: String? = nil, id: String, publicKey: P256PublicKey) {
            self.team = team
            self.app = app
            self.id = id
            self.publicKey = publicKey
        }
    }

    /// The longest lifetime, in seconds from Apple's time.
    package static let longestLifetime: Int64 = 15_777_000

    /// Empty: a signature is accepted for its length.
    private let keys: [Key]

    package init(keys: [Key] = []) {
        self.keys = keys
    }

    /// - Parameter now: Apple's time, in seconds since 1970.
    package func accepts(_ secret: String, for client: TokenServer.Client, now: Int64) -> Bool {
        let parts = secret.split(separator: ".", omittingEmptySubsequences: false)
        // R and S of 32 bytes each: DER is longer.
        guard parts.count == 3, let header = try? JWSHeader(ofToken: Array(secret.utf8)), header.algorithm == "ES256",
            let keyID = header.keyID, Self.isAppleID(keyID),
            let payload = try? Base64URL.decode(String(parts[1])), let claims = try? JSONValue(parsing: payload),
            let signature = try? Base64URL.decode(String(parts[2])), signature.count == 64,
            let issuer = claims["iss"]?.string, Self.isAppleID(issuer),
            client.team.map(issuer.hasSameBytes) ?? true,
            accepts(claims, client: client.id, now: now)
        else { return false }
        guard !keys.isEmpty else { return true }
        let candidates = keys.filter { $0.id == keyID && $0.team == issuer && ($0.app ?? client.app) == client.app }
        let input = Array("\(parts[0]).\(parts[1])".utf8)
        return candidates.contains { (try? $0.publicKey.isValid(signature: signature, over: input)) == true }
    }

    private func accepts(_ claims: JSONValue, client: String, now: Int64) -> Bool {
        guard let issuedAt = claims["iat"]?.integer, let expiry = claims["exp"]?.integer else { return false }
        return claims["sub"]?.string?.hasSameBytes(as: client) == true
            && claims["aud"]?.string == SimulatedApple.appleIssuer
            && issuedAt <= now && now < expiry && expiry <= now &+ Self.longestLifetime
    }

    /// Team ids and key ids have ten characters.
    private static func isAppleID(_ text: String) -> Bool {
        text.utf8.count == 10 && text.utf8.allSatisfy { $0.isLetterOrDigit && $0 < UInt8(ascii: "a") }
    }
}
