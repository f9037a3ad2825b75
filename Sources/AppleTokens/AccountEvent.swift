package import Basics

/// What one notification says about one person.
package struct AccountEvent: Sendable, Equatable {
    /// The four things that Apple reports. The raw values are today's documentation's spellings.
    package enum Kind: String, Sendable, Hashable, CaseIterable {
        /// The relay address rejects mail.
        case emailDisabled = "email-disabled"
        /// The relay address accepts mail again.
        case emailEnabled = "email-enabled"
        /// The person stopped using Apple sign-in with the app group.
        case consentRevoked = "consent-revoked"
        /// The person's Apple Account is being permanently deleted.
        case accountDeleted = "account-deleted"

        /// The kind that Apple's `type` names; nil for a type that isn't known. A deletion is spelt `account-deleted`
        /// in today's documentation and `account-delete` in older documentation and most code.
        package init?(appleType: String) {
            if let kind = Kind(rawValue: appleType) {
                self = kind
            } else if appleType == "account-delete" {
                self = .accountDeleted
            } else {
                return nil
            }
        }

        /// Whether the event is about the relay address, and so may carry one.
        package var isAboutEmail: Bool {
            switch self {
            case .emailDisabled, .emailEnabled: true
            case .consentRevoked, .accountDeleted: false
            }
        }
    }

    /// What happened.
    package let kind: Kind
    /// `type` as Apple spelt it.
    package let rawType: String
    /// Whom it happened to, within the team of the notification.
    package let subject: Subject
    /// When it happened (`event_time`): what orders events, never their arrival.
    package let time: WallTime
    /// The relay address, 1…320 bytes without control characters; only in events about email, and not in all.
    package let email: String?
    /// Whether ``email`` is a relay address, as Apple says; nil when it doesn't say.
    package let emailIsPrivate: Bool?

    /// An event of these parts. What ``NotificationVerifier`` returns went through its checks; this goes through none.
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
