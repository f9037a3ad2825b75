package import Basics

/// What an identity token of Apple says about the person who signed in.
package struct VerifiedIdentity: Sendable, Equatable {
    /// An address that Apple has verified.
    package struct Email: Sendable, Equatable {
        /// 1…320 bytes without control characters.
        package let address: String
        /// True for a relay address. Apple leaves the claim out for real addresses.
        package let isPrivate: Bool
    }

    /// Apple's guess whether a person uses the device (`real_user_status`). Only native apps get it, at the first sign-in.
    package enum RealUserStatus: Sendable, Hashable {
        case unsupported
        case unknown
        case likelyReal
        case unrecognized(Int64)

        init(_ number: Int64) {
            self =
                switch number {
                case 0: .unsupported
                case 1: .unknown
                case 2: .likelyReal
                default: .unrecognized(number)
                }
        }
    }

    /// `aud`.
    package let client: ClientID
    /// 1…255 bytes.
    package let subject: Subject
    /// `iat`: the time of the sign-in.
    package let issuedAt: WallTime
    package let expiresAt: WallTime
    /// `auth_time`: when the person last authenticated; nil in old tokens.
    package let authenticatedAt: WallTime?
    /// nil without an address, and for one that is not verified.
    package let email: Email?
    package let realUserStatus: RealUserStatus?
    /// The person in the former or next team, for 60 days after an app was transferred.
    package let transferSubject: String?
    /// The organization of a managed account.
    package let organization: String?
    /// `at_hash`: the hash of the access token of the same answer of Apple's token endpoint.
    package let accessTokenHash: String?
    /// `kid` of the key that signed the token.
    package let keyID: String

    /// True if an application may suggest linking an account with the same address, after its own login.
    package var isEmailLinkable: Bool { email?.isPrivate == false && organization == nil }
}

/// The reason why an identity token is refused.
package struct IdentityRefusal: Error, Sendable, Equatable {
    package enum Reason: String, Sendable, Hashable, CaseIterable {
        case malformedToken = "malformed-token"
        case unsupportedAlgorithm = "unsupported-algorithm"
        case badSignature = "bad-signature"
        case unknownKey = "unknown-key"
        /// A notification, which Apple signs with the same keys and audience.
        case notAnIdentityToken = "not-an-identity-token"
        case wrongIssuer = "wrong-issuer"
        case wrongAudience = "wrong-audience"
        case expired
        case notYetValid = "not-yet-valid"
        case tokenTooOld = "token-too-old"
        /// The token or the request has no nonce, and the policy requires one.
        case nonceMissing = "nonce-missing"
        case nonceMismatch = "nonce-mismatch"
        /// The token doesn't belong to the authorization code that came with it.
        case codeMismatch = "code-mismatch"
        /// The token doesn't belong to the access token of the same answer.
        case accessTokenMismatch = "access-token-mismatch"
    }

    package let reason: Reason
    /// One sentence for the developer of the application. It may quote `aud`, but no other claim.
    package let detail: String

    init(_ reason: Reason, _ detail: String) {
        self.reason = reason
        self.detail = detail
    }
}
