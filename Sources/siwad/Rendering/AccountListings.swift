import AccountStore
import AppleTokens
import Terminal

/// How accounts, their changes and their sessions are listed.
enum AccountListings {
    /// A list of states. The team is shown where it tells rows apart.
    static func states(_ rows: [AccountState]) -> Listing<AccountState> {
        let hasTeams = Set(rows.map(\.team)).count > 1
        let team = Table.Column("TEAM")
        return Listing(
            rows: rows,
            nouns: ("account", "accounts"),
            columns: [.init("SUB", cut: .middle, minimumWidth: 18)] + (hasTeams ? [team] : []) + [
                .init("APP", cut: .start, minimumWidth: 12), .init("STATE"), .init("SINCE (UTC)"), .init("MAIL"),
            ],
            cells: { row in
                [Table.Cell(row.subject.rawValue)] + (hasTeams ? [Table.Cell(row.team.rawValue)] : []) + [
                    Table.Cell(row.app.rawValue), state(row.state), Table.Cell(row.since?.shortColumn), mail(row),
                ]
            },
            json: json(_:)
        )
    }

    /// A list of changes.
    static func history(_ rows: [AccountChange]) -> Listing<AccountChange> {
        Listing(
            rows: rows,
            nouns: ("change", "changes"),
            part: "latest",
            columns: [
                .init("TIME (UTC)"), .init("SUB", cut: .middle, minimumWidth: 13),
                .init("APP", cut: .start, minimumWidth: 8), .init("WHAT"),
                .init("BECAUSE OF", cut: .middle, minimumWidth: 10), .init("ENDED", isRightAligned: true),
            ],
            cells: { row in
                [
                    Table.Cell(row.eventTime.column), Table.Cell(row.subject.rawValue), Table.Cell(row.app.rawValue),
                    what(row), Table.Cell(row.notificationID ?? "sign-in"), Table.Cell("\(row.sessionsEnded)"),
                ]
            },
            json: json(_:)
        )
    }

    /// A list of sessions.
    static func sessions(_ rows: [AccountSession]) -> Listing<AccountSession> {
        Listing(
            rows: rows,
            nouns: ("session", "sessions"),
            columns: [
                .init("SESSION", cut: .middle, minimumWidth: 12), .init("SUB", cut: .middle, minimumWidth: 14),
                .init("APP", cut: .start, minimumWidth: 8), .init("OPENED (UTC)"), .init("STATE"),
            ],
            cells: { row in
                [
                    Table.Cell(row.id), Table.Cell(row.subject.rawValue), Table.Cell(row.app.rawValue),
                    Table.Cell(row.createdAt.shortColumn), state(row),
                ]
            },
            json: json(_:)
        )
    }

    /// What changed, in a few letters; where no state did, sessions of an earlier time were ended.
    static func what(_ change: AccountChange) -> Table.Cell {
        if change.fromState == change.toState { return Table.Cell("older sessions", color: .yellow) }
        let text =
            switch change.toState {
            case "undeliverable": word(.forwardingDisabled)
            case "deliverable": word(.forwardingEnabled)
            default: change.toState
            }
        return Table.Cell(text, color: color(change.toState))
    }

    /// A state in its colour.
    static func state(_ state: String) -> Table.Cell {
        Table.Cell(state, color: color(state))
    }

    /// Live, or why not.
    static func state(_ session: AccountSession) -> Table.Cell {
        if session.isLive { return Table.Cell("live", color: .green) }
        return Table.Cell(session.endReason ?? "expired", color: session.endReason == nil ? .faint : .yellow)
    }

    /// What a register tells of.
    static func word(_ register: AccountRegister.Name) -> String {
        switch register {
        case .authorized: "signed in"
        case .revoked: "revoked"
        case .deleted: "deleted"
        case .forwardingDisabled: "mail off"
        case .forwardingEnabled: "mail on"
        case .emailObserved: "address"
        }
    }

    private static func mail(_ state: AccountState) -> Table.Cell {
        guard state.email != nil else { return Table.Cell(nil) }
        return state.emailIsDeliverable ? Table.Cell("yes", color: .green) : Table.Cell("no", color: .yellow)
    }

    private static func color(_ state: String) -> Color? {
        switch state {
        case "authorized", "deliverable": .green
        case "revoked", "undeliverable": .yellow
        case "deleted": .red
        default: nil
        }
    }
}

extension AccountState {
    /// Since when the state holds.
    var since: WallTime? {
        switch state {
        case "deleted": deletedAt
        case "revoked": revokedAt
        case "authorized": authorizedAt
        default: nil
        }
    }
}
