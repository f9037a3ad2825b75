import AccountStore
import AppleTokens
import Terminal

extension AccountListings {
    /// A state as `siwa.account_states` names it.
    static func json(_ row: AccountState) -> JSONText {
        .object([
            .init("team_id", .string(row.team.rawValue)),
            .init("sub", .string(row.subject.rawValue)),
            .init("app_id", .string(row.app.rawValue)),
            .init("state", .string(row.state)),
            .init("authorized_at", row.authorizedAt.json),
            .init("revoked_at", row.revokedAt.json),
            .init("deleted_at", row.deletedAt.json),
            .init("email", JSONText(row.email)),
            .init("email_is_private", JSONText(row.emailIsPrivate)),
            .init("email_deliverable", .bool(row.emailIsDeliverable)),
        ])
    }

    /// A change as `siwa.account_history` names it.
    static func json(_ row: AccountChange) -> JSONText {
        .object([
            .init("team_id", .string(row.team.rawValue)),
            .init("sub", .string(row.subject.rawValue)),
            .init("app_id", .string(row.app.rawValue)),
            .init("facet", .string(row.facet)),
            .init("from_state", .string(row.fromState)),
            .init("to_state", .string(row.toState)),
            .init("event_time", row.eventTime.json),
            .init("recorded_at", row.recordedAt.json),
            .init("jti", JSONText(row.notificationID)),
            .init("sessions_ended", .integer(Int64(row.sessionsEnded))),
        ])
    }

    /// A session as `siwa.sessions` names it.
    static func json(_ row: AccountSession) -> JSONText {
        .object([
            .init("session_id", .string(row.id)),
            .init("team_id", .string(row.team.rawValue)),
            .init("sub", .string(row.subject.rawValue)),
            .init("app_id", .string(row.app.rawValue)),
            .init("created_at", row.createdAt.json),
            .init("signed_in_at", row.signedInAt.json),
            .init("expires_at", row.expiresAt.json),
            .init("ended_at", row.endedAt.json),
            .init("end_reason", JSONText(row.endReason)),
            .init("live", .bool(row.isLive)),
        ])
    }

    /// The registers as `siwa.accounts` names them.
    static func json(_ row: AccountRegisters) -> [JSONText.Member] {
        [
            .init("team_id", .string(row.team.rawValue)),
            .init("sub", .string(row.subject.rawValue)),
            .init("first_heard_at", row.firstHeardAt.json),
            .init("deleted_at", row.deletedAt.json),
            .init("forwarding_disabled_at", row.forwardingDisabledAt.json),
            .init("forwarding_enabled_at", row.forwardingEnabledAt.json),
            .init("email", JSONText(row.email)),
            .init("email_is_private", JSONText(row.emailIsPrivate)),
            .init("email_observed_at", row.emailObservedAt.json),
            .init("erased_at", row.erasedAt.json),
        ]
    }

    /// A register with who told of it: `sign-in`, `notification`, or `dropped` for a notification that is no longer kept.
    static func json(_ row: AccountRegister) -> JSONText {
        let (toldBy, id, telling): (String, String?, AccountRegister.Telling?) =
            switch row.source {
            case .application: ("sign-in", nil, nil)
            case .notification(let telling): ("notification", telling.id, telling)
            case .dropped(let id): ("dropped", id, nil)
            }
        return .object([
            .init("register", .string(row.name.rawValue)),
            .init("app_id", JSONText(row.app?.rawValue)),
            .init("time", row.time.json),
            .init("told_by", .string(toldBy)),
            .init("jti", JSONText(id)),
            .init("source", JSONText(telling?.source)),
            .init("received_at", (telling?.receivedAt).json),
        ])
    }
}
