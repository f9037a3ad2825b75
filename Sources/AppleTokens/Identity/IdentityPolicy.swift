import Basics
import JOSE

/// Whether an identity token needs a nonce, which binds it to one attempt to sign in.
package enum NoncePolicy: String, Sendable, CaseIterable {
    /// Only a nonce that siwad issued; the caller has checked that with `IssuedNonces`.
    case issued
    case required
    case optional
}

/// The rules by which an identity token is accepted.
package struct IdentityPolicy: Sendable, Equatable {
    /// A shorter time than the 24 hours for which Apple's tokens are valid, in which a stolen token could be used.
    package static let usualMaximumAge = Duration.seconds(600)

    /// Apple's issuer (`iss`), compared byte by byte.
    package let issuer: String
    /// The time from `iat` to the present.
    package let maximumAge: Duration
    /// How far Apple's clock and ours may differ in both directions; never negative.
    package let leeway: Duration
    /// nil: no nonce is compared, which is only right for explaining a token.
    package let nonce: NoncePolicy?

    package init(
        issuer: String = NotificationPolicy.appleIssuer,
        maximumAge: Duration = usualMaximumAge,
        leeway: Duration = .seconds(300),
        nonce: NoncePolicy? = .required
    ) {
        self.issuer = issuer
        self.maximumAge = maximumAge
        self.leeway = max(leeway, .zero)
        self.nonce = nonce
    }
}

/// What the application knows about the attempt to sign in that the token must belong to.
package struct IdentityExpectation: Sendable {
    /// From the configuration of the application's backend, never from the device.
    package let client: ClientID
    /// The nonce that the backend issued, as it was before any hashing.
    package let nonce: String?
    /// The authorization code that the device sent with the token.
    package let code: String?
    /// The access token, for an identity token that Apple's token endpoint returned with it.
    package let accessToken: String?

    package init(client: ClientID, nonce: String? = nil, code: String? = nil, accessToken: String? = nil) {
        self.client = client
        self.nonce = nonce
        self.code = code
        self.accessToken = accessToken
    }
}

extension IdentityPolicy {
    func check(
        nonce claim: Claim<String>,
        isSupported: Bool?,
        against given: String?
    ) throws(IdentityRefusal) {
        switch (claim, given) {
        case (.absent, nil):
            guard nonce == .optional else {
                throw IdentityRefusal(.nonceMissing, "Neither the request nor the token has a nonce.")
            }
        case (.absent, _?):
            // Devices that support no nonce say so, or don't say anything.
            guard nonce == .optional, isSupported != true else {
                throw IdentityRefusal(.nonceMissing, "The token has no nonce: the app passes none to Apple.")
            }
        case (.value, nil), (.malformed, nil):
            throw IdentityRefusal(.nonceMissing, "The token has a nonce, and the request names none.")
        case (.malformed, _?):
            throw IdentityRefusal(.nonceMismatch, "The nonce of the token is not a string.")
        case (.value(let claim), let given?):
            try Self.compare(claim, with: given)
        }
    }

    /// Web pages pass the nonce itself to Apple, native apps its SHA-256 in lower-case hexadecimal.
    private static func compare(_ claim: String, with given: String) throws(IdentityRefusal) {
        let claim = Array(claim.utf8)
        let digest = SHA256.digest(Array(given.utf8).span)
        let hexadecimal = digest.hexadecimal
        let isRaw = claim.isEqualInConstantTime(to: Array(given.utf8))
        let isHashed = claim.isEqualInConstantTime(to: Array(hexadecimal.utf8))
        if isRaw || isHashed { return }
        let forms: [(form: String, text: String)] = [
            ("in upper-case hexadecimal", hexadecimal.uppercased()), ("in base64", Base64.encode(digest)),
            ("in base64url", Base64URL.encode(digest)),
        ]
        if let other = forms.first(where: { claim.isEqualInConstantTime(to: Array($0.text.utf8)) }) {
            let advice = "pass it to Apple in lower-case hexadecimal, or pass the nonce itself"
            throw IdentityRefusal(.nonceMismatch, "The token has the nonce's SHA-256 \(other.form): \(advice).")
        }
        throw IdentityRefusal(.nonceMismatch, "The token belongs to another nonce.")
    }

    /// Compares `c_hash` or `at_hash` (OpenID Connect Core §3.3.2.11): the left half of the SHA-256, in base64url.
    static func isHash(_ claim: Claim<String>, of value: String) -> Bool {
        guard let claim = claim.value else { return false }
        let half = Array(SHA256.digest(Array(value.utf8).span).prefix(SHA256.digestLength / 2))
        return Array(claim.utf8).isEqualInConstantTime(to: Array(Base64URL.encode(half).utf8))
    }
}
