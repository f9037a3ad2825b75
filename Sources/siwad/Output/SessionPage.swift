import AccountStore
import AppleTokens
import Basics
import Terminal

/// One session: whether it is live, and what ended it.
struct SessionPage: Sendable, CommandOutput {
    let session: AccountSession
    /// The registers of its person.
    let registers: [AccountRegister]

    func lines(style: OutputStyle) -> [String] {
        let facts = [
            ("person", "\(session.subject) in team \(session.team)"), ("app", session.app.rawValue),
            ("opened", utc(session.createdAt)), ("signed in", utc(session.signedInAt)),
            ("expires", session.expiresAt.map(utc) ?? "never"), ("state", state),
        ]
        let audit = session.endAction.map {
            [("note", session.endNote ?? "none"), ("audit", nextCommand("audit show \($0)"))]
        }
        return [style.painted(VisibleText.visible("session \(session.id)"), .bold)]
            + style.facts(facts + (audit ?? []), nameWidth: 11)
    }

    var json: [JSONText] {
        let cause = Column<SessionPage>("ended_by_notification", \.notification)
        return [.object(AccountListings.sessionColumns.members(of: session) + [cause].members(of: self))]
    }

    private var state: String {
        if session.isLive { return "live" }
        guard let endedAt = session.endedAt else { return "expired" }
        let reported = notification.map { ", reported by notification \($0)" } ?? ""
        let cause =
            switch session.endReason {
            case "signed-out": "the application signed it out"
            case "rotated": "the application replaced it by another"
            case "consent-revoked": "the consent was revoked\(reported)"
            case "account-deleted": "the account was deleted\(reported)"
            case "operator": session.endedBy.map { "the operator \($0) ended it" } ?? "ended for an operator by SQL"
            default: session.endReason ?? ""
            }
        return "ended on \(utc(endedAt)): \(cause)"
    }

    /// The notification that ended it.
    private var notification: String? {
        let register: AccountRegister? =
            switch session.endReason {
            case "consent-revoked": registers.first { $0.name == .revoked && $0.app == session.app }
            case "account-deleted": registers.first { $0.name == .deleted }
            default: nil
            }
        switch register?.source {
        case .notification(let notification): return notification.id
        case .dropped(let id): return id
        case .application, nil: return nil
        }
    }

    private func utc(_ time: WallTime) -> String { "\(time.secondText) UTC" }
}
