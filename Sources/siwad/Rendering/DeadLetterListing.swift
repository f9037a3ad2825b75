import AccountStore
import AppleTokens
import Terminal

/// How dead letters are listed and counted.
enum DeadLetterListing {
    /// A list; the status has a column only where it isn't the usual one.
    static func list(_ rows: [KeptDeadLetter]) -> Listing<KeptDeadLetter> {
        let tellsStatus = rows.contains { $0.status != .open }
        return Listing(
            rows: rows,
            nouns: ("dead letter", "dead letters"),
            columns: [
                .init("ID", isRightAligned: true), .init("RECEIVED (UTC)"), .init("REASON"),
                .init("TRIED", isRightAligned: true), .init("APP", cut: .start, minimumWidth: 8),
                .init("TYPE", cut: .end, minimumWidth: 8),
            ] + (tellsStatus ? [.init("STATUS", cut: .end, minimumWidth: 6)] : []),
            cells: { row in
                [
                    Table.Cell("\(row.id)"), Table.Cell(row.receivedAt.shortColumn), Table.Cell(row.rawReason),
                    Table.Cell("\(row.attempts)"), Table.Cell(row.audience), Table.Cell(row.eventType),
                    status(row.status),
                ]
            },
            json: { .object(json($0)) }
        )
    }

    /// Counts by a group.
    static func counts(_ rows: [DeadLetterCount], by grouping: DeadLetterGrouping) -> Listing<DeadLetterCount> {
        Listing(
            rows: rows,
            nouns: ("dead letter", "dead letters"),
            columns: [
                .init(grouping.rawValue.uppercased(), cut: grouping == .app ? .start : .end, minimumWidth: 12),
                .init("OPEN", isRightAligned: true), .init("REPLAYED", isRightAligned: true),
                .init("DISCARDED", isRightAligned: true), .init("OPEN SINCE (UTC)"), .init("NEWEST (UTC)"),
            ],
            cells: { row in
                [
                    label(row.group), Table.Cell("\(row.open)", color: row.open > 0 ? .yellow : nil),
                    Table.Cell("\(row.replayed)"), Table.Cell("\(row.discarded)"),
                    Table.Cell(row.oldestOpenAt?.shortColumn), Table.Cell(row.newestAt.shortColumn),
                ]
            },
            json: { row in
                .object([
                    .init(grouping.rawValue, JSONText(row.group)), .init("open", .integer(Int64(row.open))),
                    .init("replayed", .integer(Int64(row.replayed))),
                    .init("discarded", .integer(Int64(row.discarded))),
                    .init("oldest_open_at", row.oldestOpenAt.json), .init("newest_at", row.newestAt.json),
                ])
            }
        )
    }

    /// What a group is called: an empty name is another one than none.
    private static func label(_ group: String?) -> Table.Cell {
        group == "" ? Table.Cell("\"\"") : Table.Cell(group)
    }

    /// A status in its colour.
    static func status(_ status: DeadLetterStatus) -> Table.Cell {
        switch status {
        case .open: Table.Cell(status.rawValue, color: .yellow)
        case .replayed: Table.Cell(status.rawValue, color: .green)
        case .discarded: Table.Cell(status.rawValue, color: .faint)
        }
    }

    /// A letter as `siwa.dead_letters` names it.
    static func json(_ row: KeptDeadLetter) -> [JSONText.Member] {
        [
            .init("id", .integer(row.id)),
            .init("received_at", row.receivedAt.json),
            .init("last_received_at", row.lastReceivedAt.json),
            .init("deliveries", .integer(Int64(row.deliveries))),
            .init("reason", .string(row.rawReason)),
            .init("detail", .string(row.detail)),
            .init("status", .string(row.status.rawValue)),
            .init("attempts", .integer(Int64(row.attempts))),
            .init("jti", JSONText(row.notificationID)),
            .init("aud", JSONText(row.audience)),
            .init("sub", JSONText(row.subject)),
            .init("event_type", JSONText(row.eventType)),
            .init("verified_kid", JSONText(row.verifiedKeyID)),
            .init("verified_at", row.verifiedAt.json),
            .init("last_failed_at", row.lastFailedAt.json),
            .init("last_failed_by", JSONText(row.lastFailedBy)),
            .init("resolved_at", row.resolvedAt.json),
            .init("resolved_by", JSONText(row.resolvedBy)),
            .init("resolved_by_role", JSONText(row.resolvedByRole)),
            .init("note", JSONText(row.note)),
            .init("outcome", JSONText(row.outcome)),
        ]
    }
}
