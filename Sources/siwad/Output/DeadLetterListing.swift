import AccountStore
import AppleTokens
import Terminal

/// The columns and tables of dead letters and their counts.
enum DeadLetterListing {
    /// `siwa.dead_letters`
    static var columns: [Column<KeptDeadLetter>] {
        [
            .init("id", \.id, "ID", .right),
            .init("received_at", \.receivedAt, "RECEIVED (UTC)"),
            .init("last_received_at", \.lastReceivedAt),
            .init("deliveries", \.deliveries),
            .init("reason", \.rawReason, "REASON"),
            .init("detail", \.detail),
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
            .init("jti", \.notificationID),
            .init("aud", \.audience, "APP", .cutStart(minimum: 8)),
            .init("sub", \.subject),
            .init("event_type", \.eventType, "TYPE", .cutEnd(minimum: 8)),
            .init("verified_kid", \.verifiedKeyID),
            .init("verified_at", \.verifiedAt),
            .init("last_failed_at", \.lastFailedAt),
            .init("last_failed_by", \.lastFailedBy),
            .init("resolved_at", \.resolvedAt),
            .init("resolved_by", \.resolvedBy),
            .init("resolved_by_role", \.resolvedByRole),
            .init("note", \.note),
            .init("outcome", \.outcome),
        ]
    }

    /// The status has a column only if a letter is not open.
    static func list(_ rows: [KeptDeadLetter]) -> Listing<KeptDeadLetter> {
        let status = rows.contains { $0.status != .open } ? ["STATUS"] : []
        return Listing(
            rows: rows,
            noun: "dead letter",
            columns: columns,
            titles: ["ID", "RECEIVED (UTC)", "REASON", "TRIED", "APP", "TYPE"] + status
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
