import AccountStore
import AppleTokens
import Basics
import Postgres
import Terminal

/// Everything about one person in one team, on one screen.
struct AccountPage: Sendable, CommandOutput {
    let registers: AccountRegisters
    /// The registers that hold a time, with the sign-in or notification that set each.
    let registersWithSources: [AccountRegister]
    /// One for each app group.
    let states: [AccountState]
    let sessionCounts: [AppID: SessionCount]
    /// The latest sessions, the last opened first.
    let sessions: [AccountSession]
    /// Of each app group, the session that ended last.
    let lastEnded: [AccountSession]
    /// The latest changes, the oldest first.
    let history: [AccountChange]
    /// The latest open letters, the last received first.
    let letters: [KeptDeadLetter]
    /// The maximum number of sessions, changes and letters each.
    let limit: Int

    static func pages(
        subject: String,
        team: String?,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountPage] {
        var pages: [AccountPage] = []
        for registers in try Accounts.registers(subject: subject, team: team, in: session) {
            let (person, team) = (registers.subject, registers.team)
            // The configuration bounds the number of app groups, so the page shows all of them.
            var accounts = AccountFilter(subject: person.rawValue, team: team.rawValue, limit: .max)
            let states = try Accounts.states(accounts, in: session)
            accounts.limit = limit
            let sessions = SessionFilter(subject: person.rawValue, team: team.rawValue, limit: limit)
            pages.append(
                AccountPage(
                    registers: registers,
                    registersWithSources: try Accounts.sources(subject: person, team: team, in: session),
                    states: states,
                    sessionCounts: try Sessions.count(subject: person, team: team, in: session),
                    sessions: try Sessions.list(sessions, in: session),
                    lastEnded: try Sessions.lastEnded(subject: person, team: team, in: session),
                    history: try Accounts.history(accounts, in: session),
                    letters: try DeadLetters.open(about: person, of: team, limit: limit, in: session),
                    limit: limit
                )
            )
        }
        return pages
    }

    func lines(style: OutputStyle) -> [String] {
        var lines = [
            style.painted("\(VisibleText.visible(registers.subject.rawValue)) in team \(registers.team)", .bold)
        ]
        lines += summary.flatMap { style.hanging("  ", indentation: 2, $0) }
        let heard = "first on \(registers.firstHeardAt.secondText) UTC"
        lines += [""] + style.facts([("heard of", heard), ("address", address), ("mail", mail)], nameWidth: 10)
        func add<Row>(_ title: String, _ columns: [Column<Row>], _ rows: [Row], _ titles: [String]?, none: String) {
            let table = columns.table(of: rows, titles: titles)
            lines += ["", style.painted(title, .bold)]
            lines += table.isEmpty ? ["  " + none] : table.lines(style: style, indentation: 2)
        }
        let stateTitles = ["APP", "STATE", "SIGNED IN (UTC)", "REVOKED (UTC)"]
        add("STATES", AccountListings.stateColumns, states, stateTitles, none: "none")
        add("SET BY", AccountListings.registerColumns, registersWithSources, nil, none: "nothing is set")
        let sessionTitles = ["SESSION", "APP", "OPENED (UTC)", "STATE", "ENDED (UTC)"]
        let sessionTitle = "SESSIONS: \(sessionCount.live) live of \(sessionCount.all)"
        add(sessionTitle, AccountListings.sessionColumns, sessions, sessionTitles, none: "none")
        lines += endings.flatMap { style.hanging("  ", indentation: 2, $0) }
        let changeTitles = ["TIME (UTC)", "APP", "WHAT", "BECAUSE OF", "ENDED"]
        let historyTitle = "HISTORY" + latest(of: history.count)
        add(historyTitle, AccountListings.changeColumns, history, changeTitles, none: "nothing changed yet")
        if !letters.isEmpty {
            let listing = DeadLetterListing.list(letters)
            let title = "OPEN DEAD LETTERS" + latest(of: letters.count)
            add(title, listing.columns, letters, listing.titles, none: "")
        }
        return lines
    }

    var json: [JSONText] {
        let columns: [Column<AccountPage>] = [
            .init("email_deliverable", \.isDeliverable),
            .init("summary") { $0.summary.map(\.json) },
            .init("apps") { AccountListings.stateColumns.objects(of: $0.states) },
            .init("registers") { AccountListings.registerColumns.objects(of: $0.registersWithSources) },
            .init("sessions_live", \.sessionCount.live),
            .init("sessions_total", \.sessionCount.all),
            .init("sessions") { AccountListings.sessionColumns.objects(of: $0.sessions) },
            .init("history") { AccountListings.changeColumns.objects(of: $0.history) },
            .init("dead_letters") { DeadLetterListing.columns.objects(of: $0.letters) },
        ]
        return [.object(AccountListings.accountColumns.members(of: registers) + columns.members(of: self))]
    }

    /// The end of the title of a list that the limit may have cut.
    private func latest(of count: Int) -> String { count < limit ? "" : ": the latest \(count)" }

    private var sessionCount: SessionCount {
        let counts = sessionCounts.values
        return SessionCount(all: counts.reduce(0) { $0 + $1.all }, live: counts.reduce(0) { $0 + $1.live })
    }

    private var isDeliverable: Bool { states.first?.emailIsDeliverable ?? true }

    private var address: String {
        if registers.erasedAt != nil { return "erased" }
        guard let email = registers.email else { return "never seen" }
        let kind =
            switch registers.emailIsPrivate {
            case .some(true): "private relay"
            case .some(false): "the person's own"
            case .none: "private or own is unknown"
            }
        let seen = registers.emailObservedAt.map { ", seen \($0.secondText) UTC" } ?? ""
        return "\(VisibleText.visible(email)) (\(kind)\(seen))"
    }

    private var mail: String {
        if registers.erasedAt != nil { return "nothing to send to" }
        var causes: [String] = []
        if registers.deletedAt != nil, !isDeliverable { causes.append("the account is deleted") }
        for (word, time) in [("off", registers.forwardingDisabledAt), ("on", registers.forwardingEnabledAt)] {
            if let time { causes.append("forwarding \(word) since \(time.secondText) UTC") }
        }
        let known = causes.isEmpty ? "Apple never said otherwise" : causes.joined(separator: ", ")
        return "\(isDeliverable ? "deliverable" : "undeliverable"): \(known)"
    }
}

// MARK: - Summary

extension AccountPage {
    /// The first lines: is the person signed in, and if not, why. One sentence for all app groups if the account is deleted,
    /// else one for each app group.
    var summary: [String] {
        guard let deletedAt = registers.deletedAt else {
            return states.isEmpty ? ["No app group knows this person."] : states.map(sentence)
        }
        let deletion = "the Apple Account was deleted on \(deletedAt.secondText) UTC\(reported(.deleted, app: nil))"
        let erasure = registers.erasedAt.map {
            "The address and the tokens were erased on \($0.secondText) UTC; the times and states are kept."
        }
        return ["Signed out everywhere and for good: \(deletion)."] + [erasure].compactMap(\.self)
    }

    private func sentence(_ state: AccountState) -> String {
        let count = sessionCounts[state.app] ?? SessionCount(all: 0, live: 0)
        let isLive = count.live > 0
        let sentence =
            switch state.state {
            case "revoked" where isLive:
                "still signed in: consent \(revocation(state)), and \(counted(count.live, "session")) opened since then "
                    + "\(count.live == 1 ? "is" : "are") live, though the application reported no sign-in."
            case "revoked": "signed out, because consent \(revocation(state))."
            case "authorized" where isLive: "signed in, \(counted(count.live, "live session")). \(consent(state))"
            case "authorized" where count.all == 0: "no session was ever opened. \(consent(state))"
            case "authorized": "no session is live\(lastEnd(in: state.app)). \(consent(state))"
            case _ where isLive:
                "\(counted(count.live, "live session")), though the application reported no sign-in."
            default: "never signed in; known from mail settings or a session only."
            }
        return "\(state.app): \(sentence)"
    }

    private func revocation(_ state: AccountState) -> String {
        let time = state.revokedAt.map { " on \($0.secondText) UTC" } ?? ""
        return "was revoked\(time)\(reported(.revoked, app: state.app))"
    }

    /// The consent in force, and the revocation before it if there was one.
    private func consent(_ state: AccountState) -> String {
        let since = state.authorizedAt.map { " since \($0.secondText) UTC" } ?? ""
        guard state.revokedAt != nil else { return "Consent is in force\(since)." }
        let hasEnded =
            sessionCounts[state.app]?.revoked ?? 0 > 0
            || history.contains { $0.app == state.app && $0.facet == "consent" && $0.sessionsEnded > 0 }
        let effect = hasEnded ? ", which ended older sessions" : ""
        return "Consent \(revocation(state))\(effect); it is in force again\(since)."
    }

    /// A sentence for each operator's action that ended sessions on the page.
    private var endings: [String] {
        let ended = sessions.filter { $0.endAction != nil }
        return Set(ended.compactMap(\.endAction)).sorted(by: >).compactMap { action in
            let sessions = ended.filter { $0.endAction == action }
            guard let first = sessions.first else { return nil }
            let ids = sessions.count == 1 ? "session \(first.id)" : counted(sessions.count, "session")
            return "The operator \(first.endedBy ?? "") ended \(ids): \(first.endNote ?? "no note") (audit \(action))"
        }
    }

    /// How the session that ended last did.
    private func lastEnd(in app: AppID) -> String {
        guard let session = lastEnded.first(where: { $0.app == app }),
            let time = [session.endedAt, session.expiresAt].compactMap(\.self).min()
        else { return "" }
        let how =
            switch session.endReason {
            case _ where time == session.expiresAt: "it expired"
            case "signed-out": "the application signed it out"
            case "rotated": "the application replaced it by another"
            case "operator": session.endedBy.map { "the operator \($0) ended it" } ?? "an operator ended it"
            case "consent-revoked": "the consent was revoked"
            case "account-deleted": "the account was deleted"
            default: "it expired"
            }
        return "; the last one ended on \(time.secondText) UTC, when \(how)"
    }

    /// Names the sign-in or notification that set a register, as a clause.
    private func reported(_ name: AccountRegister.Name, app: AppID?) -> String {
        switch registersWithSources.first(where: { $0.name == name && $0.app == app })?.source {
        case nil: return ""
        case .application: return ", reported by a sign-in"
        case .notification(let telling):
            let way =
                switch telling.source {
                case "replay": " when it was replayed"
                case "spool": " by way of the spool"
                default: ""
                }
            return ", reported by notification \(telling.id)\(way)"
        case .dropped(let id): return id.map { ", reported by notification \($0)" } ?? ""
        }
    }
}
