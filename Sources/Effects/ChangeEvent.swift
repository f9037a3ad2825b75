package import AccountStore
import AppleTokens
import Basics
import JOSE
package import Terminal

/// A change as an event for receivers. `Schema/Events/v1.json` describes its form.
package struct ChangeEvent: Sendable {
    /// The types of the catalogue.
    package enum Kind: String, Sendable, CaseIterable {
        case consentRevoked = "siwa.consent.revoked"
        case consentAuthorized = "siwa.consent.authorized"
        case sessionsEnded = "siwa.sessions.ended"
        case accountDeleted = "siwa.account.deleted"
        case forwardingDisabled = "siwa.email.forwarding_disabled"
        case forwardingEnabled = "siwa.email.forwarding_enabled"
    }

    package let change: PublishedChange
    /// The person's address, for receivers that want it. Events of other types than those about addresses don't contain it.
    package let email: String?

    package init(_ change: PublishedChange, email: String? = nil) {
        self.change = change
        self.email = email
    }

    /// Identifies the event in every delivery of it, also after a restart or in a restored copy of the database: `msg_` and
    /// 32 hexadecimal digits. Derived from the change, so that nothing has to be stored.
    package var id: String {
        let change = change
        let parts = [
            "siwa.change.1", "\(change.changeID)", "\(change.recordedAt.microseconds)", "\(change.accountID)",
            change.app.rawValue, change.facet, change.fromState, change.toState, change.notificationID ?? "",
        ]
        // The lengths make the concatenation unambiguous.
        let bytes = parts.flatMap { part in
            let length = UInt32(part.utf8.count)
            return (0..<4).map { UInt8(truncatingIfNeeded: length >> (24 - 8 * $0)) } + part.utf8
        }
        let digest = SHA256.digest(bytes.span).prefix(16)
        return "msg_" + digest.hexadecimal
    }

    /// The members of the body, in their order: `type`, `timestamp`, `data`.
    package var members: [JSONText.Member] {
        [
            .init("type", .string(change.type)), .init("timestamp", Self.json(change.eventTime)),
            .init("data", .object(data)),
        ]
    }

    /// The body, with its id and the time of its publication.
    package var envelope: JSONText { .object(envelopeMembers) }

    /// The members of ``envelope``, in their order.
    package var envelopeMembers: [JSONText.Member] {
        [.init("id", .string(id)), .init("published_at", Self.json(change.publishedAt))] + members
    }

    private var data: [JSONText.Member] {
        let change = change
        let common: [JSONText.Member] = [
            .init("version", .integer(1)), .init("position", .integer(change.position)),
            .init("scope", .string(change.scope)), .init("team_id", .string(change.team.rawValue)),
            .init("app_id", .string(change.app.rawValue)), .init("sub", .string(change.subject.rawValue)),
            .init("from", .string(change.fromState)), .init("to", .string(change.toState)),
            .init("recorded_at", Self.json(change.recordedAt)),
        ]
        return common + effect + [.init("notification", change.notificationID.map { .string($0) } ?? .null)]
    }

    /// The members that only some types have.
    private var effect: [JSONText.Member] {
        switch Kind(rawValue: change.type) {
        case .consentRevoked: [sessions(until: Self.json(change.eventTime))]
        case .sessionsEnded:
            if let session = change.sessionID {
                [.init("session_id", .string(session)), .init("reason", .string("operator"))]
            } else {
                [sessions(until: Self.json(change.eventTime)), .init("reason", .string("consent-revoked"))]
            }
        case .accountDeleted: [sessions(until: .null)]
        case .forwardingDisabled, .forwardingEnabled: email.map { [.init("email", .string($0))] } ?? []
        case .consentAuthorized, nil: []
        }
    }

    /// - Parameter until: the sessions that ended rest on a sign-in up to this time; null: all sessions.
    private func sessions(until time: JSONText) -> JSONText.Member {
        .init(
            "sessions",
            .object([.init("ended", .integer(Int64(change.sessionsEnded))), .init("created_until", time)])
        )
    }

    /// With milliseconds, which is the precision of Apple's times.
    private static func json(_ time: WallTime) -> JSONText {
        .string(WallTime(milliseconds: time.wholeMilliseconds).iso8601)
    }
}
