/// A notification that is kept for an operator, with what is known of it.
///
/// The texts are cut to a sane length and free of NUL, whatever the claims held, so that PostgreSQL can't refuse them.
package struct DeadLetter: Sendable, Equatable {
    /// Why it is kept.
    package let reason: DeadLetterReason
    /// One sentence for the operator, without personal data.
    package let detail: String
    /// `jti`, where it could be read.
    package let notificationID: String?
    /// `aud`, where it could be read.
    package let audience: String?
    /// `sub`, where it could be read.
    package let subject: String?
    /// `type`, where it could be read.
    package let eventType: String?
    /// `kid` of the key that signed it; nil for ``DeadLetterReason/keysUnavailable``: nothing of that is verified.
    package let verifiedKeyID: String?
    /// The compact JWS as received.
    package let token: [UInt8]

    /// A dead letter of these parts, its texts cut to 256 bytes.
    package init(
        reason: DeadLetterReason,
        detail: String,
        notificationID: String? = nil,
        audience: String? = nil,
        subject: String? = nil,
        eventType: String? = nil,
        verifiedKeyID: String? = nil,
        token: [UInt8]
    ) {
        self.reason = reason
        self.detail = detail
        self.notificationID = notificationID.map(Self.kept)
        self.audience = audience.map(Self.kept)
        self.subject = subject.map(Self.kept)
        self.eventType = eventType.map(Self.kept)
        self.verifiedKeyID = verifiedKeyID.map(Self.kept)
        self.token = token
    }

    /// For a notification whose key can't be asked for at present: nothing of it is believed, only the token is kept.
    package static func keysUnavailable(token: [UInt8]) -> DeadLetter {
        DeadLetter(
            reason: .keysUnavailable,
            detail: "The key that it names is not in the key set at hand, and a fresh one could not be asked for.",
            token: token
        )
    }

    /// For a verified notification that PostgreSQL refuses as data. `detail` must hold no value of it.
    package static func storeRejected(_ notification: VerifiedNotification, detail: String) -> DeadLetter {
        DeadLetter(
            reason: .storeRejected,
            detail: detail,
            notificationID: notification.id.rawValue,
            audience: notification.audience,
            subject: notification.event.subject.rawValue,
            eventType: notification.event.rawType,
            verifiedKeyID: notification.keyID,
            token: notification.token
        )
    }

    /// At most 256 bytes of the text, cut between characters, without NUL.
    private static func kept(_ text: String) -> String {
        let clean = text.utf8.contains(0) ? String(text.unicodeScalars.filter { $0 != "\0" }) : text
        guard clean.utf8.count > 256 else { return clean }
        var length = 0
        let scalars = clean.unicodeScalars.prefix { scalar in
            length += UTF8.width(scalar)
            return length <= 256
        }
        return String(scalars)
    }
}
