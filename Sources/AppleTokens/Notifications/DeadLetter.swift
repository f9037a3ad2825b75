/// A notification that is stored for an operator, with the claims that could be read.
///
/// Its texts are cut to 256 bytes and have no NUL, so that PostgreSQL accepts them.
package struct DeadLetter: Sendable, Equatable {
    package let reason: DeadLetterReason
    /// One sentence for the operator, without personal data.
    package let detail: String
    // `jti`, `aud`, `sub` and `type`, each nil if it could not be read.
    package let notificationID: String?
    package let audience: String?
    package let subject: String?
    package let eventType: String?
    /// `kid` of the key that signed it; nil for ``DeadLetterReason/keysUnavailable``, which is not verified.
    package let verifiedKeyID: String?
    /// The compact JWS as received.
    package let token: [UInt8]

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
        self.notificationID = notificationID.map(Self.storable)
        self.audience = audience.map(Self.storable)
        self.subject = subject.map(Self.storable)
        self.eventType = eventType.map(Self.storable)
        self.verifiedKeyID = verifiedKeyID.map(Self.storable)
        self.token = token
    }

    /// For a notification whose key cannot be fetched at present. Only the token is stored, because nothing in it is verified.
    package static func keysUnavailable(token: [UInt8]) -> DeadLetter {
        DeadLetter(
            reason: .keysUnavailable,
            detail:
                "The stored key set lacks the key that the token names, and a current key set could not be fetched.",
            token: token
        )
    }

    /// For a verified notification that PostgreSQL refuses. `detail` must not contain its values.
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

    /// Cuts the text to 256 bytes between characters, and removes NUL.
    private static func storable(_ text: String) -> String {
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

/// The reason why a notification that Apple signed, or may have signed, is stored for an operator and not applied.
package enum DeadLetterReason: String, Error, Sendable, Hashable, CaseIterable {
    /// `aud` is not a configured app.
    case unknownAudience = "unknown-audience"
    /// `type` is not a known one.
    case unknownEventType = "unknown-event-type"
    /// A claim is missing, out of range, or has another type than documented.
    case malformedClaims = "malformed-claims"
    /// It arrived after `exp` and the leeway.
    case expired
    /// `iat` or `event_time` is further in the future than the leeway.
    case notYetValid = "not-yet-valid"
    /// PostgreSQL refused its data.
    case storeRejected = "store-rejected"
    /// Its key could not be fetched, so it is not verified.
    case keysUnavailable = "keys-unavailable"
}
