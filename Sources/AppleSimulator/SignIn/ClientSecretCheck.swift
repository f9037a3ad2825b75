import Basics
import JOSE

/// Checks a client secret as strictly as Apple's documentation describes it (“Creating a client secret”, TN3107).
package struct ClientSecretCheck: Sendable {
    /// The longest lifetime, in seconds from Apple's time.
    package static let longestLifetime: Int64 = 15_777_000

    /// Verifies the ES256 signature of `input` with the key of this id.
    package typealias Verification =
        @Sendable (_ keyID: String, _ input: [UInt8], _ signature: [UInt8]) -> Bool

    /// nil: any signature of 64 bytes is accepted.
    private let verification: Verification?

    package init(verification: Verification? = nil) {
        self.verification = verification
    }

    /// - Parameters:
    ///   - team: the required `iss`; nil: any ten characters.
    ///   - now: Apple's time, in seconds since 1970.
    package func accepts(_ secret: String, client: String, team: String?, now: Int64) -> Bool {
        let parts = secret.split(separator: ".", omittingEmptySubsequences: false)
        // R and S of 32 bytes each: DER is longer.
        guard parts.count == 3, let header = try? JWSHeader(ofToken: Array(secret.utf8)), header.algorithm == "ES256",
            let keyID = header.keyID,
            let payload = try? Base64URL.decode(String(parts[1])), let claims = try? JSONValue(parsing: payload),
            let signature = try? Base64URL.decode(String(parts[2])), signature.count == 64,
            accepts(claims, client: client, team: team, now: now)
        else { return false }
        return verification?(keyID, Array("\(parts[0]).\(parts[1])".utf8), signature) ?? true
    }

    private func accepts(_ claims: JSONValue, client: String, team: String?, now: Int64) -> Bool {
        guard let issuer = claims["iss"]?.string, let issuedAt = claims["iat"]?.integer,
            let expiry = claims["exp"]?.integer
        else { return false }
        return (team.map(issuer.hasSameBytes) ?? (issuer.utf8.count == 10))
            && claims["sub"]?.string?.hasSameBytes(as: client) == true
            && claims["aud"]?.string == SimulatedApple.appleIssuer
            && issuedAt <= now && now < expiry && expiry - now <= Self.longestLifetime
    }
}
