package import Basics

/// A notification that Apple signed for a configured app group and that siwad understands.
package struct VerifiedNotification: Sendable, Equatable {
    /// `jti`, 1…256 bytes.
    package let id: NotificationID
    /// `iat`.
    package let issuedAt: WallTime
    /// `exp`, or a day after ``issuedAt`` if it is absent, as in the sample of Apple's documentation.
    package let expiresAt: WallTime
    package let team: TeamID
    /// The primary App ID of the group of `aud`.
    package let app: AppID
    /// `aud` as sent.
    package let audience: String
    package let event: AccountEvent
    /// `kid` of the key that signed it.
    package let keyID: String
    /// The compact JWS as received.
    package let token: [UInt8]

    /// Checks nothing; ``NotificationVerifier`` checks the notifications that it returns.
    package init(
        id: NotificationID,
        issuedAt: WallTime,
        expiresAt: WallTime,
        team: TeamID,
        app: AppID,
        audience: String,
        event: AccountEvent,
        keyID: String,
        token: [UInt8]
    ) {
        self.id = id
        self.issuedAt = issuedAt
        self.expiresAt = expiresAt
        self.team = team
        self.app = app
        self.audience = audience
        self.event = event
        self.keyID = keyID
        self.token = token
    }
}

/// An event that a notification reports about one person.
package struct AccountEvent: Sendable, Equatable {
    /// The raw values are the spellings of Apple's current documentation.
    package enum Kind: String, Sendable, Hashable, CaseIterable {
        /// The relay address rejects mail.
        case emailDisabled = "email-disabled"
        /// The relay address accepts mail again.
        case emailEnabled = "email-enabled"
        /// The person stopped using Apple sign-in with the app group.
        case consentRevoked = "consent-revoked"
        /// The person's Apple Account is being permanently deleted.
        case accountDeleted = "account-deleted"

        /// Returns nil for an unknown `type`. Apple's current documentation has `account-deleted`, older documentation and most
        /// code have `account-delete`.
        package init?(appleType: String) {
            if let kind = Kind(rawValue: appleType) {
                self = kind
            } else if appleType == "account-delete" {
                self = .accountDeleted
            } else {
                return nil
            }
        }

        /// True for events that may carry a relay address.
        package var isAboutEmail: Bool {
            switch self {
            case .emailDisabled, .emailEnabled: true
            case .consentRevoked, .accountDeleted: false
            }
        }
    }

    package let kind: Kind
    /// `type` as sent.
    package let rawType: String
    /// The person, within the team of the notification.
    package let subject: Subject
    /// `event_time`, which orders events. The order of arrival does not matter.
    package let time: WallTime
    /// 1…320 bytes without control characters; only in events about email, and not in all of them.
    package let email: String?
    /// True if Apple says that ``email`` is a relay address; nil if Apple does not say.
    package let emailIsPrivate: Bool?

    /// Checks nothing; ``NotificationVerifier`` checks the events that it returns.
    package init(
        kind: Kind,
        rawType: String,
        subject: Subject,
        time: WallTime,
        email: String? = nil,
        emailIsPrivate: Bool? = nil
    ) {
        self.kind = kind
        self.rawType = rawType
        self.subject = subject
        self.time = time
        self.email = email
        self.emailIsPrivate = emailIsPrivate
    }
}
