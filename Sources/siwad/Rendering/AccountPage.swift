import AccountStore
import AppleNotifications
import Terminal

/// Everything about one person in one team, on one screen.
struct AccountPage: Sendable {
    /// The person's registers.
    let registers: AccountRegisters
    /// One for each app group.
    let states: [AccountState]
    /// The one opened last first.
    let sessions: [AccountSession]
    /// The oldest first.
    let history: [AccountChange]

    /// The page.
    func lines(style: OutputStyle) -> [String] {
        var lines = [
            style.painted("\(VisibleText.visible(registers.subject.rawValue)) in team \(registers.team)", .bold)
        ]
        lines += facts.map { "  " + $0.name.padding(to: 12) + $0.text }
        lines += section("APPS", stateTable, style, none: "none: heard of through mail settings only")
        lines += section("SESSIONS", sessionTable, style, none: "none")
        lines += section("HISTORY", historyTable, style, none: "nothing changed yet")
        return lines
    }

    /// The page as one object.
    var json: JSONText {
        .object(
            AccountListings.json(registers) + [
                .init("email_deliverable", .bool(isDeliverable)),
                .init("apps", .array(states.map(AccountListings.json))),
                .init("sessions", .array(sessions.map(AccountListings.json))),
                .init("history", .array(history.map(AccountListings.json))),
            ]
        )
    }

    private var isDeliverable: Bool {
        states.first?.emailIsDeliverable ?? true
    }

    private var facts: [(name: String, text: String)] {
        var facts = [(name: "heard of", text: "first on \(registers.firstHeardAt.column) UTC")]
        if let deletedAt = registers.deletedAt {
            facts.append(("deleted", "the Apple Account was deleted on \(deletedAt.column) UTC; every app, for good"))
        }
        facts.append(("address", address))
        facts.append(("mail", mail))
        return facts
    }

    private var address: String {
        guard let email = registers.email else { return "never seen" }
        let kind =
            switch registers.emailIsPrivate {
            case .some(true): "private relay"
            case .some(false): "the person's own"
            case .none: "private or own is unknown"
            }
        let seen = registers.emailObservedAt.map { ", seen \($0.column) UTC" } ?? ""
        return "\(VisibleText.visible(email)) (\(kind)\(seen))"
    }

    private var mail: String {
        var causes: [String] = []
        if registers.deletedAt != nil, !isDeliverable { causes.append("the account is deleted") }
        for (word, time) in [("off", registers.forwardingDisabledAt), ("on", registers.forwardingEnabledAt)] {
            if let time { causes.append("forwarding \(word) since \(time.column) UTC") }
        }
        let known = causes.isEmpty ? "Apple never said otherwise" : causes.joined(separator: ", ")
        return "\(isDeliverable ? "deliverable" : "undeliverable"): \(known)"
    }

    private func section(_ title: String, _ table: Table, _ style: OutputStyle, none: String) -> [String] {
        ["", style.painted(title, .bold)] + (table.isEmpty ? ["  " + none] : table.lines(style: style, indentation: 2))
    }

    private var stateTable: Table {
        var table = Table([
            .init("APP", cut: .start, minimumWidth: 16), .init("STATE"), .init("SIGNED IN (UTC)"),
            .init("REVOKED (UTC)"),
        ])
        for state in states {
            table.append([
                Table.Cell(state.app.rawValue), AccountListings.state(state.state),
                Table.Cell(state.authorizedAt?.column), Table.Cell(state.revokedAt?.column),
            ])
        }
        return table
    }

    private var sessionTable: Table {
        var table = Table([
            .init("SESSION", cut: .middle, minimumWidth: 12), .init("APP", cut: .start, minimumWidth: 10),
            .init("OPENED (UTC)"), .init("STATE"), .init("ENDED (UTC)"),
        ])
        for session in sessions {
            table.append([
                Table.Cell(session.id), Table.Cell(session.app.rawValue), Table.Cell(session.createdAt.shortColumn),
                AccountListings.state(session), Table.Cell(session.endedAt?.shortColumn),
            ])
        }
        return table
    }

    private var historyTable: Table {
        var table = Table([
            .init("TIME (UTC)"), .init("APP", cut: .start, minimumWidth: 10), .init("WHAT"),
            .init("BECAUSE OF", cut: .middle, minimumWidth: 14), .init("ENDED", isRightAligned: true),
        ])
        for change in history {
            table.append([
                Table.Cell(change.eventTime.column), Table.Cell(change.app.rawValue), AccountListings.what(change),
                Table.Cell(change.notificationID ?? "sign-in"), Table.Cell("\(change.sessionsEnded)"),
            ])
        }
        return table
    }
}
