import AccountStore
import AppleTokens
package import Basics
package import Postgres

/// The state in the database of the people of one delivery, in the terms of the model.
package struct Observed {
    private let start: WallTime
    private var states: [Model.Consent: AccountState] = [:]
    private var sessions: [String: AccountSession] = [:]

    /// An empty state of a delivery that begins at `start`.
    package init(since start: WallTime) {
        self.start = start
    }

    /// The state of all people in the database, by the prefix of their delivery. All deliveries begin at `start`.
    package static func all(
        since start: WallTime,
        on connection: PostgresConnection
    ) async throws -> [String: Observed] {
        let (states, sessions) = try await connection.withSession { session throws(PostgresError) in
            (
                try Accounts.states(AccountFilter(limit: .max), in: session),
                try Sessions.list(SessionFilter(limit: nil), in: session)
            )
        }
        var all: [String: Observed] = [:]
        for state in states {
            let (prefix, sub) = split(state.subject.rawValue)
            let person = Model.Person(team: state.team.rawValue, sub: sub)
            all[prefix, default: Observed(since: start)].states[
                Model.Consent(person: person, app: state.app.rawValue)
            ] = state
        }
        for session in sessions {
            let (prefix, name) = split(session.id)
            all[prefix, default: Observed(since: start)].sessions[name] = session
        }
        return all
    }

    /// The differences from the model.
    package func differences(from model: Model) -> [String] {
        var differences: [String] = []
        for (consent, expected) in model.consents {
            guard let state = states[consent] else {
                let mayLack = expected.state == "deleted" && model.onlySignedIn.contains(consent)
                if !mayLack { differences.append("\(consent) has no row") }
                continue
            }
            guard let person = model.people[consent.person] else { continue }
            differences += self.differences(state, expected, person).map { "\(consent): \($0)" }
        }
        if states.keys.contains(where: { model.consents[$0] == nil }) { differences.append("a row too many") }
        for (name, expected) in model.sessions {
            let session = sessions[name]
            // A session of a deleted account has ended when it is opened, or is not opened if no sign-in was recorded.
            if session == nil, model.isAccountDeleted(ofSession: name) { continue }
            let observed = Model.SessionState(endedAt: session?.endedAt.map(minute), reason: session?.endReason)
            if session == nil || observed != expected {
                differences.append("\(name): \(observed) instead of \(expected)")
            }
            if session?.isLive != (expected.endedAt == nil) { differences.append("\(name): liveness") }
        }
        if sessions.keys.contains(where: { model.sessions[$0] == nil }) { differences.append("a session too many") }
        return differences
    }

    private func differences(
        _ state: AccountState,
        _ consent: Model.ConsentState,
        _ person: Model.PersonState
    ) -> [String] {
        var differences: [String] = []
        func expect<T: Equatable>(_ name: String, _ observed: T, _ expected: T) {
            if observed != expected { differences.append("\(name) \(observed) instead of \(expected)") }
        }
        expect("state", state.state, consent.state)
        expect("deleted_at", state.deletedAt.map(minute), person.deletedAt)
        expect("revoked_at", state.revokedAt.map(minute), consent.revokedAt)
        guard person.deletedAt == nil else {
            // Which sign-ins were recorded before the deletion depends on the order, and no state follows from them.
            if state.emailIsPrivate != false { expect("email_deliverable", state.emailIsDeliverable, false) }
            return differences
        }
        expect("authorized_at", state.authorizedAt.map(minute), consent.authorizedAt)
        expect("email", state.email, person.email)
        expect("email_is_private", state.emailIsPrivate, person.emailIsPrivate)
        expect("email_deliverable", state.emailIsDeliverable, person.receivesMail)
        return differences
    }

    private func minute(_ time: WallTime) -> Int {
        Int(time.duration(since: start).components.seconds) / 60
    }

    private static func split(_ name: String) -> (prefix: String, name: String) {
        guard let slash = name.firstIndex(of: "/") else { return ("", name) }
        return (String(name[...slash]), String(name[name.index(after: slash)...]))
    }
}
