import AccountStore
import AppleTokens
import Terminal

/// Everything about one person in one team, on one screen.
struct AccountPage: Sendable {
    /// The person's registers.
    let registers: AccountRegisters
    /// Those of them that hold a time, with who told of it.
    let registersWithSources: [AccountRegister]
    /// One for each app group.
    let states: [AccountState]
    /// How many sessions there are in each app group.
    let sessionCounts: [AppID: SessionCount]
    /// The latest, the one opened last first.
    let sessions: [AccountSession]
    /// The latest, the oldest first.
    let history: [AccountChange]
    /// The latest that are open, the one received last first.
    let letters: [KeptDeadLetter]

    /// The page.
    func lines(style: OutputStyle) -> [String] {
        var lines = [
            style.painted("\(VisibleText.visible(registers.subject.rawValue)) in team \(registers.team)", .bold)
        ]
        for sentence in AccountVerdict(on: self).sentences {
            lines += VisibleText.wrapped(sentence, to: style.width.map { $0 - 2 }).map { "  " + $0 }
        }
        lines.append("")
        for (name, text) in facts {
            let wrapped = VisibleText.wrapped(text, to: style.width.map { $0 - 12 })
            lines += wrapped.enumerated().map { "  " + ($0 == 0 ? name : "").padding(to: 10) + $1 }
        }
        lines += section("STATES", stateTable, style, none: "none")
        lines += section("SET BY", registerTable, style, none: "nothing is set")
        lines += section(
            "SESSIONS: \(sessionCount.live) live of \(sessionCount.all)",
            sessionTable,
            style,
            none: "none"
        )
        lines += section("HISTORY", historyTable, style, none: "nothing changed yet")
        if !letters.isEmpty {
            lines += section("OPEN DEAD LETTERS", DeadLetterListing.list(letters).table, style, none: "")
        }
        return lines
    }

    /// The page as one object.
    var json: JSONText {
        .object(
            AccountListings.json(registers) + [
                .init("email_deliverable", .bool(isDeliverable)),
                .init("summary", .array(AccountVerdict(on: self).sentences.map { .string($0) })),
                .init("apps", .array(states.map(AccountListings.json))),
                .init("registers", .array(registersWithSources.map(AccountListings.json))),
                .init("sessions_live", .integer(Int64(sessionCount.live))),
                .init("sessions_total", .integer(Int64(sessionCount.all))),
                .init("sessions", .array(sessions.map(AccountListings.json))),
                .init("history", .array(history.map(AccountListings.json))),
                .init("dead_letters", .array(letters.map { .object(DeadLetterListing.json($0)) })),
            ]
        )
    }

    private var sessionCount: SessionCount {
        SessionCount(
            all: sessionCounts.values.reduce(0) { $0 + $1.all },
            live: sessionCounts.values.reduce(0) { $0 + $1.live }
        )
    }

    private var isDeliverable: Bool {
        states.first?.emailIsDeliverable ?? true
    }

    private var facts: [(name: String, text: String)] {
        [
            (name: "heard of", text: "first on \(registers.firstHeardAt.column) UTC"), ("address", address),
            ("mail", mail),
        ]
    }

    private var address: String {
        if registers.erasedAt != nil { return "erased" }
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
        if registers.erasedAt != nil { return "nothing to send to" }
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

    private var registerTable: Table {
        var table = Table([
            .init("WHAT"), .init("APP", cut: .start, minimumWidth: 8), .init("TIME (UTC)"),
            .init("TOLD BY", cut: .middle, minimumWidth: 8), .init("WAY"), .init("RECEIVED (UTC)"),
        ])
        for register in registersWithSources {
            let facts: [String?] =
                switch register.source {
                case .application: ["sign-in"]
                case .notification(let telling): [telling.id, telling.source, telling.receivedAt.shortColumn]
                case .dropped(let id): [id ?? "dropped", "dropped"]
                }
            table.append(
                [
                    Table.Cell(AccountListings.word(register.name)), Table.Cell(register.app?.rawValue ?? "all"),
                    Table.Cell(register.time.column),
                ] + facts.map { Table.Cell($0) }
            )
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
