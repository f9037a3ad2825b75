import AccountStore
import AppleTokens

/// What a support person wants to know before anything else, in sentences: whether somebody is signed out, and why.
struct AccountVerdict {
    private let page: AccountPage

    /// The verdict on a person.
    init(on page: AccountPage) {
        self.page = page
    }

    /// A sentence or a few for what holds everywhere, then for each app group.
    var sentences: [String] {
        guard let deletedAt = page.registers.deletedAt else {
            return page.states.isEmpty ? ["No app group knows this person."] : page.states.map(sentence)
        }
        var sentences = [
            "Signed out everywhere and for good: the Apple Account was deleted on \(deletedAt.column) UTC"
                + told(.deleted, app: nil) + "."
        ]
        if let erasedAt = page.registers.erasedAt {
            sentences.append(
                "The address and the tokens were erased on \(erasedAt.column) UTC; what is left decides the states."
            )
        }
        return sentences
    }

    private func sentence(_ state: AccountState) -> String {
        let count = page.sessionCounts[state.app] ?? SessionCount(all: 0, live: 0)
        let verdict =
            switch state.state {
            case "revoked": revoked(state, count)
            case "authorized": count.live > 0 ? signedIn(state, count) : signedOut(state, count)
            default: neverSignedIn(count)
            }
        return "\(state.app): \(verdict)"
    }

    private func revoked(_ state: AccountState, _ count: SessionCount) -> String {
        let time = state.revokedAt.map { " on \($0.column) UTC" } ?? ""
        let cause = "consent was revoked\(time)\(told(.revoked, app: state.app))"
        if count.live > 0 {
            return "signed in all the same: \(cause), and \(counted(count.live, "session")) opened since then "
                + "\(count.live == 1 ? "is" : "are") live, though the application told of no sign-in."
        }
        return "signed out, because \(cause)."
    }

    private func signedIn(_ state: AccountState, _ count: SessionCount) -> String {
        "signed in, \(counted(count.live, "live session")). \(past(state))"
    }

    private func signedOut(_ state: AccountState, _ count: SessionCount) -> String {
        guard count.all > 0 else { return "no session was ever opened. \(past(state))" }
        return "no session is live\(lastEnd(in: state.app)). \(past(state))"
    }

    private func neverSignedIn(_ count: SessionCount) -> String {
        count.live > 0
            ? "\(counted(count.live, "live session")), though the application told of no sign-in."
            : "never signed in; heard of through mail settings or a session only."
    }

    /// What was before the consent that is in force.
    private func past(_ state: AccountState) -> String {
        let since = state.authorizedAt.map { " since \($0.column) UTC" } ?? ""
        guard let revokedAt = state.revokedAt else { return "Consent is in force\(since)." }
        return "Consent was revoked on \(revokedAt.column) UTC\(told(.revoked, app: state.app)), which ended older "
            + "sessions; it is in force again\(since)."
    }

    /// How the session ended that ended last, of those that are shown.
    private func lastEnd(in app: AppID) -> String {
        let ends = page.sessions.filter { $0.app == app && !$0.isLive }.compactMap { session in
            (session.endedAt ?? session.expiresAt).map { (session, $0) }
        }
        guard let (session, time) = ends.max(by: { $0.1.microseconds < $1.1.microseconds }) else { return "" }
        let how =
            switch session.endReason {
            case "signed-out": "the application signed it out"
            case "operator": "an operator ended it"
            case "consent-revoked": "the consent was revoked"
            case "account-deleted": "the account was deleted"
            default: "it expired"
            }
        return "; the last one ended on \(time.column) UTC, when \(how)"
    }

    /// Who told of a register, as a clause.
    private func told(_ name: AccountRegister.Name, app: AppID?) -> String {
        guard let register = page.registersWithSources.first(where: { $0.name == name && $0.app == app }) else {
            return ""
        }
        switch register.source {
        case .application: return ", told by a sign-in"
        case .notification(let telling):
            let way =
                switch telling.source {
                case "replay": " when it was replayed"
                case "spool": " by way of the spool"
                default: ""
                }
            return ", told by notification \(telling.id)\(way)"
        case .dropped(let id): return id.map { ", told by notification \($0)" } ?? ""
        }
    }
}
