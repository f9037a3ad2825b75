import AccountStore
import AppleTokens
import JOSE
import Terminal

/// How notifications are listed and shown.
enum NotificationListing {
    /// A list.
    static func list(_ rows: [LoggedNotification]) -> Listing<LoggedNotification> {
        Listing(
            rows: rows,
            nouns: ("notification", "notifications"),
            columns: [
                .init("RECEIVED (UTC)"), .init("TYPE"), .init("SUB", cut: .middle, minimumWidth: 13),
                .init("OUTCOME"), .init("ENDED", isRightAligned: true), .init("JTI", cut: .middle, minimumWidth: 9),
            ],
            cells: { row in
                [
                    Table.Cell(row.receivedAt.shortColumn), Table.Cell(row.eventType),
                    Table.Cell(row.subject.rawValue),
                    Table.Cell(row.outcome, color: row.outcome == "applied" ? .green : .faint),
                    Table.Cell("\(row.sessionsEnded)"), Table.Cell(row.id),
                ]
            },
            json: { .object(members($0)) }
        )
    }

    /// Everything about one, a line for each fact.
    static func page(_ row: LoggedNotification) -> [String] {
        let outcome =
            switch row.outcome {
            case "applied": "applied: it changed what is known of this person"
            case "superseded": "superseded: something newer was known already"
            case "unchanged": "unchanged: it said what was known already"
            default: row.outcome
            }
        let facts = [
            ("jti", row.id), ("type", row.eventType), ("sub", row.subject.rawValue), ("team", row.team.rawValue),
            ("app", row.app.rawValue), ("happened", "\(row.eventTime.column) UTC"),
            ("issued", "\(row.issuedAt.column) UTC"), ("received", "\(row.receivedAt.column) UTC, by \(row.source)"),
            ("outcome", outcome), ("sessions", "\(row.sessionsEnded) ended"), ("key", row.verifiedKeyID),
            ("claims", claims(row.token) ?? absent(row)), ("jws", row.token ?? absent(row)),
        ]
        return facts.map { name, text in name.padding(to: 10) + VisibleText.visible(text) }
    }

    /// One as `siwa.notifications` names it, with its token; null: it was erased.
    static func json(_ row: LoggedNotification) -> JSONText {
        .object(members(row) + [.init("jws", JSONText(row.token))])
    }

    /// What a list knows of one: tokens are not read for it.
    private static func members(_ row: LoggedNotification) -> [JSONText.Member] {
        [
            .init("jti", .string(row.id)),
            .init("issued_at", row.issuedAt.json),
            .init("received_at", row.receivedAt.json),
            .init("recorded_at", row.recordedAt.json),
            .init("team_id", .string(row.team.rawValue)),
            .init("app_id", .string(row.app.rawValue)),
            .init("sub", .string(row.subject.rawValue)),
            .init("event_type", .string(row.eventType)),
            .init("event_time", row.eventTime.json),
            .init("outcome", .string(row.outcome)),
            .init("source", .string(row.source)),
            .init("sessions_ended", .integer(Int64(row.sessionsEnded))),
            .init("verified_kid", .string(row.verifiedKeyID)),
        ]
    }

    private static func absent(_ row: LoggedNotification) -> String {
        row.isTokenHidden ? "hidden from this database role" : "erased"
    }

    private static func claims(_ token: String?) -> String? {
        // What is stored was verified before; if it can't be read any more, the token itself is shown all the same.
        guard let token, let jws = try? CompactJWS(parsing: Array(token.utf8)) else { return nil }
        return String(decoding: jws.payload, as: UTF8.self)
    }
}
