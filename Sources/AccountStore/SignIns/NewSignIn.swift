package import AppleTokens
package import Basics
import Postgres

/// The way by which a sign-in reaches siwad (`siwa.sign_ins.flow`).
package enum SignInKind: String, PostgresValue, Sendable, CaseIterable {
    /// An app sends an identity token.
    case native
    /// An app sends a code only.
    case code
    case web
    case android
}

/// What the application says of the device; kept for support.
package struct SignInDevice: Sendable, Equatable {
    package let platform: String?
    package let model: String?
    package let label: String?

    package init(platform: String?, model: String?, label: String?) {
        self.platform = platform
        self.model = model
        self.label = label
    }
}

/// A sign-in before its code is traded. Whatever may be used only once is named by its SHA-256.
package struct NewSignIn: Sendable, Equatable {
    /// Of the identity token, or of the code in the flow without one.
    package var presentedDigest: [UInt8]
    package var nonceDigest: [UInt8]?
    package var codeDigest: [UInt8]?
    /// Of the idempotency key.
    package var attempt: [UInt8]?
    package var client: ClientID
    package var caller: String
    package var kind: SignInKind
    /// nil in the flow with a code only, which knows the person after the exchange.
    package var subject: Subject?
    /// `iat`; in the flow with a code only, siwad's time. It is compared with the database's clock and with a revocation, and not
    /// stored.
    package var issuedAt: WallTime?
    package var sessionID: String?
    package var device: SignInDevice?

    package init(
        presentedDigest: [UInt8],
        nonceDigest: [UInt8]? = nil,
        codeDigest: [UInt8]? = nil,
        attempt: [UInt8]? = nil,
        client: ClientID,
        caller: String,
        kind: SignInKind,
        subject: Subject? = nil,
        issuedAt: WallTime? = nil,
        sessionID: String? = nil,
        device: SignInDevice? = nil
    ) {
        self.presentedDigest = presentedDigest
        self.nonceDigest = nonceDigest
        self.codeDigest = codeDigest
        self.attempt = attempt
        self.client = client
        self.caller = caller
        self.kind = kind
        self.subject = subject
        self.issuedAt = issuedAt
        self.sessionID = sessionID
        self.device = device
    }
}

package enum Reservation: Sendable, Equatable {
    /// The caller has 15 seconds to settle or release it; then another one may take it over, which gives it another id.
    case reserved(signInID: Int64)
    /// The same request was settled before.
    case repeated(SettledSignIn)
    case refused(SignInConflict)
}

/// Why the database refuses a sign-in.
package enum SignInConflict: String, Sendable, CaseIterable {
    /// The identity token, or the code without one, belongs to another sign-in.
    case tokenUsed = "token-used"
    case nonceUsed = "nonce-used"
    /// The session id is in use, by the same person too.
    case sessionTaken = "session-taken"
    /// The person revoked the consent at the time of the sign-in or later.
    case consentRevoked = "consent-revoked"
    case accountDeleted = "account-deleted"
    /// The same request is under way elsewhere.
    case inProgress = "in-progress"
    case unknownClient = "unknown-client"
    /// Its time is more than five minutes ahead of the database's clock.
    case notYetValid = "not-yet-valid"
}
