import AccountStore
import AppleTokens
import Basics
import Terminal

/// The columns and tables of accounts, changes and sessions. JSON members have the names of the database's columns.
enum AccountListings {
    /// `siwa.account_states`
    static var stateColumns: [Column<AccountState>] {
        [
            .init("team_id", \.team.rawValue, "TEAM"),
            .init("sub", \.subject.rawValue, "SUB", .cutEnd(minimum: 15)),
            .init("app_id", \.app.rawValue, "APP", .cutStart(minimum: 12)),
            .init("state", \.state, "STATE") { Table.Cell($0.state, color: color($0.state)) },
            .init(title: "SINCE (UTC)") { Table.Cell($0.since?.minuteText) },
            .init("authorized_at", \.authorizedAt, "SIGNED IN (UTC)") { Table.Cell($0.authorizedAt?.secondText) },
            .init("revoked_at", \.revokedAt, "REVOKED (UTC)") { Table.Cell($0.revokedAt?.secondText) },
            .init("deleted_at", \.deletedAt, "DELETED (UTC)") { Table.Cell($0.deletedAt?.secondText) },
            .init("email", \.email, "ADDRESS", .cutEnd(minimum: 12)),
            .init("email_is_private", \.emailIsPrivate, "PRIVATE"),
            .init("email_deliverable", \.emailIsDeliverable, "MAIL") { row in
                guard row.email != nil else { return Table.Cell(nil) }
                return row.emailIsDeliverable ? Table.Cell("yes", color: .green) : Table.Cell("no", color: .yellow)
            },
        ]
    }

    /// `siwa.account_history`
    static var changeColumns: [Column<AccountChange>] {
        [
            .init("team_id", \.team.rawValue, "TEAM"),
            .init("sub", \.subject.rawValue, "SUB", .cutEnd(minimum: 15)),
            .init("app_id", \.app.rawValue, "APP", .cutStart(minimum: 8)),
            .init("facet", \.facet, "FACET"),
            .init("from_state", \.fromState, "BEFORE"),
            .init("to_state", \.toState, "WHAT") { what($0) },
            .init("event_time", \.eventTime, "TIME (UTC)") { Table.Cell($0.eventTime.secondText) },
            .init("recorded_at", \.recordedAt, "RECORDED (UTC)"),
            .init("jti", \.notificationID, "BECAUSE OF", .cutEnd(minimum: 9)) {
                Table.Cell($0.notificationID ?? ($0.sessionID == nil ? "sign-in" : "operator"))
            },
            .init("sessions_ended", \.sessionsEnded, "ENDED", .right),
            .init("session_id", \.sessionID, "SESSION", .cutEnd(minimum: 12)),
        ]
    }

    /// `siwa.sessions`
    static var sessionColumns: [Column<AccountSession>] {
        [
            .init("session_id", \.id, "SESSION", .cutEnd(minimum: 12)),
            .init("team_id", \.team.rawValue, "TEAM"),
            .init("sub", \.subject.rawValue, "SUB", .cutEnd(minimum: 15)),
            .init("app_id", \.app.rawValue, "APP", .cutStart(minimum: 8)),
            .init("created_at", \.createdAt, "OPENED (UTC)"),
            .init("signed_in_at", \.signedInAt, "SIGNED IN (UTC)"),
            .init("expires_at", \.expiresAt, "EXPIRES (UTC)"),
            .init("ended_at", \.endedAt, "ENDED (UTC)"),
            .init("end_reason", \.endReason, "STATE") { row in
                if row.isLive { return Table.Cell("live", color: .green) }
                return Table.Cell(row.endReason ?? "expired", color: row.endReason == nil ? .faint : .yellow)
            },
            .init("live", \.isLive),
            .init("ended_by", \.endedBy, "ENDED BY", .cutEnd(minimum: 8)),
            .init("end_note", \.endNote, "NOTE", .cutEnd(minimum: 12)),
            .init("end_action_id", \.endAction, "AUDIT", .right),
        ]
    }

    /// `siwa.accounts`
    static var accountColumns: [Column<AccountRegisters>] {
        [
            .init("team_id", \.team.rawValue),
            .init("sub", \.subject.rawValue),
            .init("first_heard_at", \.firstHeardAt),
            .init("deleted_at", \.deletedAt),
            .init("forwarding_disabled_at", \.forwardingDisabledAt),
            .init("forwarding_enabled_at", \.forwardingEnabledAt),
            .init("email", \.email),
            .init("email_is_private", \.emailIsPrivate),
            .init("email_observed_at", \.emailObservedAt),
            .init("erased_at", \.erasedAt),
        ]
    }

    static var registerColumns: [Column<AccountRegister>] {
        [
            .init("register", \.name.rawValue, "WHAT") { Table.Cell(word($0.name)) },
            .init("app_id", \.app?.rawValue, "APP", .cutStart(minimum: 8)) { Table.Cell($0.app?.rawValue ?? "all") },
            .init("time", \.time, "TIME (UTC)") { Table.Cell($0.time.secondText) },
            .init("told_by", \.origin.kind, "REPORTED BY", .cutEnd(minimum: 8)) {
                Table.Cell($0.origin.id ?? $0.origin.kind)
            },
            .init("jti", \.origin.id),
            .init("source", \.origin.notification?.source, "WAY") { row in
                row.origin.kind == "dropped" ? "dropped" : Table.Cell(row.origin.notification?.source)
            },
            .init("received_at", \.origin.notification?.receivedAt, "RECEIVED (UTC)"),
        ]
    }

    /// The team has a column only if the rows belong to several teams.
    static func states(_ rows: [AccountState]) -> Listing<AccountState> {
        let team = Set(rows.map(\.team)).count > 1 ? ["TEAM"] : []
        return Listing(
            rows: rows,
            noun: "account",
            columns: stateColumns,
            titles: ["SUB"] + team + ["APP", "STATE", "SINCE (UTC)", "MAIL"]
        )
    }

    static func history(_ rows: [AccountChange]) -> Listing<AccountChange> {
        Listing(
            rows: rows,
            noun: "change",
            part: "latest",
            columns: changeColumns,
            titles: ["TIME (UTC)", "SUB", "APP", "WHAT", "BECAUSE OF", "ENDED"]
        )
    }

    static func sessions(_ rows: [AccountSession]) -> Listing<AccountSession> {
        Listing(
            rows: rows,
            noun: "session",
            columns: sessionColumns,
            titles: ["SESSION", "SUB", "APP", "OPENED (UTC)", "STATE"],
            furtherTitles: ["ENDED (UTC)", "ENDED BY", "NOTE"]
        )
    }

    /// A change whose state is the same before and after it ended older sessions.
    private static func what(_ change: AccountChange) -> Table.Cell {
        if change.fromState == change.toState, change.sessionsEnded > 0 {
            return Table.Cell("older sessions", color: .yellow)
        }
        let text =
            switch change.toState {
            case "undeliverable": word(.forwardingDisabled)
            case "deliverable": word(.forwardingEnabled)
            case "ended": "session"
            default: change.toState
            }
        return Table.Cell(text, color: color(change.toState))
    }

    private static func word(_ register: AccountRegister.Name) -> String {
        switch register {
        case .authorized: "signed in"
        case .revoked: "revoked"
        case .deleted: "deleted"
        case .forwardingDisabled: "mail off"
        case .forwardingEnabled: "mail on"
        case .emailObserved: "address"
        }
    }

    private static func color(_ state: String) -> Color? {
        switch state {
        case "authorized", "deliverable": .green
        case "revoked", "undeliverable", "ended": .yellow
        case "deleted": .red
        default: nil
        }
    }
}

extension Table {
    /// The lines of a part of the rows, with the widths that a row of usual values has.
    fileprivate func stream(usual: [String], style: OutputStyle) -> [String] {
        var (table, style) = (self, style)
        table.append(usual.map { Table.Cell($0) })
        // The width at which a row needs only one line.
        style.width = style.width.map { max($0, 80) }
        return table.lines(style: style).dropLast()
    }
}

extension AccountState {
    /// The time of the event that set the state.
    var since: WallTime? {
        switch state {
        case "deleted": deletedAt
        case "revoked": revokedAt
        case "authorized": authorizedAt
        default: nil
        }
    }
}

extension AccountRegister {
    /// What set the register: `sign-in`, `notification`, or `dropped` for a notification that was deleted after the
    /// retention time.
    fileprivate var origin: (kind: String, id: String?, notification: Notification?) {
        switch source {
        case .application: ("sign-in", nil, nil)
        case .notification(let notification): ("notification", notification.id, notification)
        case .dropped(let id): ("dropped", id, nil)
        }
    }
}

enum NotificationListing {
    static var columns: [Column<LoggedNotification>] {
        [
            .init("jti", \.id, "JTI", .cutEnd(minimum: 9)),
            .init("issued_at", \.issuedAt, "ISSUED (UTC)"),
            .init("received_at", \.receivedAt, "RECEIVED (UTC)"),
            .init("recorded_at", \.recordedAt),
            .init("team_id", \.team.rawValue, "TEAM"),
            .init("app_id", \.app.rawValue, "APP", .cutStart(minimum: 10)),
            .init("sub", \.subject.rawValue, "SUB", .cutEnd(minimum: 15)),
            .init("event_type", \.eventType, "TYPE", .cutEnd(minimum: 10)),
            .init("event_time", \.eventTime, "HAPPENED (UTC)"),
            .init("outcome", \.outcome, "OUTCOME") {
                Table.Cell($0.outcome, color: $0.outcome == "applied" ? .green : .faint)
            },
            .init("source", \.source, "SOURCE"),
            .init("sessions_ended", \.sessionsEnded, "ENDED", .right),
            .init("verified_kid", \.verifiedKeyID, "KEY"),
        ]
    }

    /// The query of a list does not read tokens.
    static func list(_ rows: [LoggedNotification]) -> Listing<LoggedNotification> {
        Listing(
            rows: rows,
            noun: "notification",
            columns: columns,
            titles: ["RECEIVED (UTC)", "TYPE", "SUB", "APP", "OUTCOME", "JTI"]
        )
    }

    /// The lines of a list that is printed in pieces: the columns have the widths of usual values in each piece.
    static func stream(_ rows: [LoggedNotification], style: OutputStyle) -> [String] {
        let usual = [
            "2026-01-02 03:04", "consent-revoked", String(repeating: "0", count: 44), "com.example.app", "superseded",
            String(repeating: "0", count: 22),
        ]
        return list(rows).table.stream(usual: usual, style: style)
    }
}

enum ChangeListing {
    /// `siwa.changes`
    static var columns: [Column<PublishedChange>] {
        [
            .init("position", \.position, "POSITION", .right),
            .init("published_at", \.publishedAt, "PUBLISHED (UTC)") { Table.Cell($0.publishedAt.secondText) },
            // The types differ at their ends.
            .init("type", \.type, "TYPE", .cutStart(minimum: 16)) { Table.Cell(String($0.type.dropFirst(5))) },
            .init("scope", \.scope, "SCOPE"),
            .init("team_id", \.team.rawValue, "TEAM"),
            .init("sub", \.subject.rawValue, "SUB", .cutEnd(minimum: 12)),
            .init("app_id", \.app.rawValue, "APP", .cutStart(minimum: 10)),
            .init("facet", \.facet, "FACET"),
            .init("from_state", \.fromState, "BEFORE"),
            .init("to_state", \.toState, "AFTER"),
            .init("event_time", \.eventTime, "HAPPENED (UTC)") { Table.Cell($0.eventTime.secondText) },
            .init("recorded_at", \.recordedAt, "RECORDED (UTC)"),
            .init("jti", \.notificationID, "BECAUSE OF", .cutEnd(minimum: 9)) {
                Table.Cell($0.notificationID ?? ($0.sessionID == nil ? "sign-in" : "operator"))
            },
            .init("sessions_ended", \.sessionsEnded, "ENDED", .right),
            .init("session_id", \.sessionID, "SESSION", .cutEnd(minimum: 12)),
            .init("account_id", \.accountID),
            .init("change_id", \.changeID),
        ]
    }

    static func list(_ rows: [PublishedChange]) -> Listing<PublishedChange> {
        Listing(
            rows: rows,
            noun: "change",
            part: "latest",
            columns: columns,
            titles: ["POSITION", "PUBLISHED (UTC)", "TYPE", "SUB", "APP", "ENDED"]
        )
    }

    /// The lines of a list that is printed in pieces: the columns have the widths of usual values in each piece.
    static func stream(_ rows: [PublishedChange], style: OutputStyle) -> [String] {
        let usual = [
            "00000000", "2026-01-02 03:04:05", "email.forwarding_disabled", String(repeating: "0", count: 44),
            "com.example.app", "00000",
        ]
        return list(rows).table.stream(usual: usual, style: style)
    }
}

enum DeadLetterListing {
    /// `siwa.dead_letters`
    static var columns: [Column<KeptDeadLetter>] {
        [
            .init("id", \.id, "ID", .right),
            .init("received_at", \.receivedAt, "RECEIVED (UTC)"),
            .init("last_received_at", \.lastReceivedAt, "LAST RECEIVED (UTC)"),
            .init("deliveries", \.deliveries, "DELIVERIES", .right),
            .init("reason", \.rawReason, "REASON"),
            .init("detail", \.detail, "DETAIL", .cutEnd(minimum: 12)),
            .init("status", \.status.rawValue, "STATUS", .cutEnd(minimum: 6)) { row in
                let color: Color =
                    switch row.status {
                    case .open: .yellow
                    case .replayed: .green
                    case .discarded: .faint
                    }
                return Table.Cell(row.status.rawValue, color: color)
            },
            .init("attempts", \.attempts, "TRIED", .right),
            .init("jti", \.notificationID, "JTI", .cutEnd(minimum: 9)),
            .init("aud", \.audience, "APP", .cutStart(minimum: 8)),
            .init("sub", \.subject, "SUB", .cutEnd(minimum: 15)),
            .init("event_type", \.eventType, "TYPE", .cutEnd(minimum: 8)),
            .init("verified_kid", \.verifiedKeyID),
            .init("verified_at", \.verifiedAt),
            .init("last_failed_at", \.lastFailedAt),
            .init("last_failed_by", \.lastFailedBy),
            .init("resolved_at", \.resolvedAt, "RESOLVED (UTC)"),
            .init("resolved_by", \.resolvedBy, "BY", .cutEnd(minimum: 8)),
            .init("resolved_by_role", \.resolvedByRole),
            .init("note", \.note, "NOTE", .cutEnd(minimum: 12)),
            .init("outcome", \.outcome, "OUTCOME"),
        ]
    }

    /// The status has a column only if a letter is not open.
    static func list(_ rows: [KeptDeadLetter]) -> Listing<KeptDeadLetter> {
        let status = rows.contains { $0.status != .open } ? ["STATUS"] : []
        return Listing(
            rows: rows,
            noun: "dead letter",
            columns: columns,
            titles: ["ID", "RECEIVED (UTC)", "REASON", "TRIED", "APP", "TYPE"] + status,
            furtherTitles: ["SUB", "NOTE"]
        )
    }

    static func counts(_ rows: [DeadLetterCount], by grouping: DeadLetterGrouping) -> Listing<DeadLetterCount> {
        let title = grouping.rawValue.uppercased()
        let layout: Table.Layout = grouping == .app ? .cutStart(minimum: 12) : .cutEnd(minimum: 12)
        return Listing(
            rows: rows,
            noun: "dead letter",
            columns: [
                // An empty name is shown as "", a missing one as -.
                .init(grouping.rawValue, \.group, title, layout) { Table.Cell($0.group == "" ? "\"\"" : $0.group) },
                .init("open", \.open, "OPEN", .right) { Table.Cell("\($0.open)", color: $0.open > 0 ? .yellow : nil) },
                .init("replayed", \.replayed, "REPLAYED", .right),
                .init("discarded", \.discarded, "DISCARDED", .right),
                .init("oldest_open_at", \.oldestOpenAt, "OPEN SINCE (UTC)"),
                .init("newest_at", \.newestAt, "NEWEST (UTC)"),
            ]
        )
    }
}

enum AuditListing {
    /// `siwa.operator_actions`
    static var columns: [Column<RecordedAction>] {
        [
            .init("action_id", \.id, "ID", .right),
            .init("recorded_at", \.recordedAt, "TIME (UTC)"),
            .init("operator", \.operatorName, "OPERATOR", .cutEnd(minimum: 8)),
            .init("database_role", \.databaseRole, "ROLE", .cutEnd(minimum: 8)),
            // The end tells replay, discard and reopen apart.
            .init("action", \.action, "ACTION", .cutStart(minimum: 9)),
            .init("target", \.target, "TARGET", .cutEnd(minimum: 12)),
            .init("note", \.note, "NOTE", .cutEnd(minimum: 10)),
            .init("affected", \.affected, "COUNT", .right),
        ]
    }

    static func list(_ rows: [RecordedAction]) -> Listing<RecordedAction> {
        Listing(
            rows: rows,
            noun: "action",
            columns: columns,
            titles: ["ID", "TIME (UTC)", "OPERATOR", "ACTION", "COUNT", "TARGET", "NOTE"]
        )
    }
}
