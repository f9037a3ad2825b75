import AccountStore
import AppleTokens
import Basics
import Effects
import Terminal

enum DeliveryListing {
    static var columns: [Column<DeliveryRecord>] {
        [
            .init("id", \.delivery.id.description, "ID", .cutStart(minimum: 12)),
            .init("endpoint", \.delivery.id.endpoint),
            .init("position", \.delivery.id.position),
            .init("message_id", { ChangeEvent($0.change).id }, "MESSAGE", .cutEnd(minimum: 12)),
            // The types differ at their ends.
            .init("type", \.change.type, "TYPE", .cutStart(minimum: 12)) {
                Table.Cell(String($0.change.type.dropFirst(5)))
            },
            .init("status", \.delivery.status.rawValue, "STATUS") { cell($0.delivery.status) },
            .init("attempts", \.delivery.attempts, "TRIED", .right),
            .init("next_attempt_at", \.delivery.nextAttemptAt, "NEXT (UTC)") {
                Table.Cell($0.delivery.nextAttemptAt?.secondText)
            },
            .init("reason", \.delivery.reason, "REASON"),
            .init("http_status", \.delivery.httpStatus, "HTTP", .right),
            .init("first_failed_at", \.delivery.firstFailedAt, "FIRST FAILED (UTC)"),
            .init("resolved_at", \.delivery.resolvedAt, "ENDED (UTC)"),
            .init("note", \.delivery.note, "NOTE", .cutEnd(minimum: 12)),
            .init(title: "SUB", .cutEnd(minimum: 12)) { Table.Cell($0.change.subject.rawValue) },
            .init(title: "APP", .cutStart(minimum: 8)) { Table.Cell($0.change.app.rawValue) },
        ]
    }

    /// - Parameter noun: the word for one row.
    static func list(_ rows: [DeliveryRecord], noun: String) -> Listing<DeliveryRecord> {
        let next = rows.contains { $0.delivery.nextAttemptAt != nil } ? ["NEXT (UTC)"] : []
        return Listing(
            rows: rows,
            noun: noun,
            part: "latest",
            columns: columns,
            titles: ["ID", "TYPE", "STATUS", "TRIED", "REASON", "HTTP"] + next,
            furtherTitles: ["SUB", "FIRST FAILED (UTC)", "NOTE"]
        )
    }

    static func counts(_ rows: [DeliveryCount], by grouping: DeliveryGrouping) -> Listing<DeliveryCount> {
        let layout: Table.Layout =
            switch grouping {
            case .app, .type: .cutStart(minimum: 12)
            case .endpoint, .reason: .cutEnd(minimum: 12)
            }
        return Listing(
            rows: rows,
            noun: "group",
            columns: [
                .init(grouping.rawValue, \.group, grouping.rawValue.uppercased(), layout) { row in
                    Table.Cell(grouping == .type ? row.group.map { String($0.dropFirst(5)) } : row.group)
                },
                .init("pending", \.pending, "PENDING", .right),
                .init("retry", \.retry, "RETRY", .right),
                .init("dead", \.dead, "DEAD", .right) { Table.Cell("\($0.dead)", color: $0.dead > 0 ? .red : nil) },
                .init("discarded", \.discarded, "DISCARDED", .right),
                .init("delivered", \.delivered, "DELIVERED", .right),
                .init("oldest_at", \.oldestAt, "OLDEST (UTC)"),
            ]
        )
    }

    static func cell(_ status: DeliveryStatus) -> Table.Cell {
        let color: Color? =
            switch status {
            case .pending: nil
            case .retry: .yellow
            case .dead: .red
            case .discarded: .faint
            case .delivered: .green
            }
        return Table.Cell(status.rawValue, color: color)
    }
}

/// One delivery: the cause, the next step, and the failed attempts.
struct DeliveryPage: CommandOutput {
    private let record: DeliveryRecord
    private let attempts: [DeliveryAttempt]

    init(_ record: DeliveryRecord, attempts: [DeliveryAttempt]) {
        self.record = record
        self.attempts = attempts
    }

    private var delivery: Delivery { record.delivery }

    func lines(style: OutputStyle) -> [String] {
        // After its end, a delivery keeps the reason of its last failed attempt, which did not cause the end.
        let isEnded = [.delivered, .discarded].contains(delivery.status)
        let reason = isEnded ? "" : delivery.reason.map { ": \($0)" } ?? ""
        var lines = [style.painted("delivery \(delivery.id), \(delivery.status.rawValue)\(reason)", .bold)]
        lines += ([cause, remedy] as [String]).flatMap { style.hanging("  ", indentation: 2, $0) }
        if let command { lines.append("    " + VisibleText.visible(command)) }
        lines += [""] + style.facts(facts, nameWidth: 15)
        guard !attempts.isEmpty else { return lines }
        lines += ["", style.painted("FAILED ATTEMPTS", .bold)]
        return lines + Self.attemptColumns.table(of: attempts).lines(style: style, indentation: 2)
    }

    var json: [JSONText] {
        let columns: [Column<DeliveryPage>] = [
            .init("cause", \.cause), .init("remedy", \.remedy), .init("command", \.command),
            .init("failed_attempts") { Self.attemptColumns.objects(of: $0.attempts) },
        ]
        return [.object(DeliveryListing.columns.members(of: record) + columns.members(of: self))]
    }

    private var facts: [(name: String, text: String)] {
        let change = record.change
        let facts: [(String, String?)] = [
            ("message", ChangeEvent(change).id), ("type", change.type), ("sub", change.subject.rawValue),
            ("app", change.app.rawValue), ("made", "\(delivery.createdAt.secondText) UTC"),
            ("attempts", "\(delivery.attempts)" + (delivery.isClaimed ? ", one of them under way" : "")),
            ("next attempt", delivery.nextAttemptAt.map { "\($0.secondText) UTC" }),
            ("first failed", delivery.firstFailedAt.map { "\($0.secondText) UTC" }),
            ("last failure", attempts.last?.detail),
            (
                delivery.status.rawValue,
                delivery.resolvedAt.map { time in
                    "\(time.secondText) UTC" + (delivery.resolvedBy.map { " by \($0)" } ?? "")
                }
            ),
            ("note", delivery.note),
        ]
        return facts.compactMap { name, text in text.map { (name, VisibleText.visible($0)) } }
    }

    private static var attemptColumns: [Column<DeliveryAttempt>] {
        [
            .init("attempt", \.number, "NO", .right),
            .init("attempted_at", \.attemptedAt, "TIME (UTC)") { Table.Cell($0.attemptedAt.secondText) },
            .init("duration_ms", \.duration.milliseconds, "MS", .right),
            .init("reason", \.reason, "REASON"),
            .init("http_status", \.httpStatus, "HTTP", .right),
            .init("detail", \.detail, "DETAIL", .cutEnd(minimum: 12)),
        ]
    }

    // MARK: - Advice

    private var cause: String {
        switch delivery.status {
        case .delivered: return "The receiver accepted it."
        case .discarded: return "An operator discarded it."
        case .pending, .retry, .dead: break
        }
        guard let raw = delivery.reason else { return "It waits for its first attempt." }
        let answer = delivery.httpStatus.map { " It answered \($0)." } ?? ""
        return (DeliveryReason(rawValue: raw)?.meaning ?? "The last attempt failed: \(raw).") + answer
    }

    private var remedy: String {
        switch delivery.status {
        case .delivered: "Nothing is left to do."
        case .discarded: "Nothing, as it was discarded. To deliver it after all, retry it."
        case .pending: "Nothing, unless the endpoint is not enabled."
        case .retry: "siwad tries again. \(reasonRemedy) A retry makes the next attempt now."
        case .dead: "\(reasonRemedy) Then retry it, or discard it."
        }
    }

    private var reasonRemedy: String {
        delivery.reason.flatMap { DeliveryReason(rawValue: $0)?.remedy } ?? "Find out what the receiver did."
    }

    private var command: String? {
        switch delivery.status {
        case .delivered: nil
        case .pending: nextCommand("endpoints show \(delivery.id.endpoint)")
        case .retry: nextCommand("deliveries retry \(delivery.id) --status retry --note '…'")
        case .dead: nextCommand("deliveries retry \(delivery.id) --note '…'")
        case .discarded: nextCommand("deliveries retry \(delivery.id) --status discarded --note '…'")
        }
    }
}

extension DeliveryReason {
    /// What happened, as a sentence.
    fileprivate var meaning: String {
        switch self {
        case .redirected: "The receiver redirected the request. siwad follows no redirect."
        case .refused: "The receiver refused the event."
        case .failed: "The receiver failed."
        case .timedOut: "The receiver sent no whole answer in time."
        case .unreachable: "The receiver was not reachable."
        case .tls: "The TLS handshake failed."
        case .blocked: "The address is not one that siwad may connect to."
        case .malformedAnswer: "The answer was not HTTP."
        case .aborted: "The receiver asked for no further attempt of this event."
        case .gone: "The receiver asked for no more events."
        case .throttled: "The receiver asked for a pause."
        }
    }

    fileprivate var remedy: String {
        switch self {
        case .redirected: "Change the URL of the endpoint to the address that the receiver redirects to."
        case .refused: "Look in the receiver's log; a wrong secret or path is the usual cause."
        case .failed: "Look in the receiver's log for the cause."
        case .timedOut: "Let the receiver answer first and work afterwards, or raise the timeout of the endpoint."
        case .unreachable: "Check that the receiver runs, its name, and the network between."
        case .tls: "Check the receiver's certificate, or name its authority in SIWAD_DELIVERY_CA."
        case .blocked: "Allow the address with SIWAD_DELIVERY_ALLOW, or change the URL of the endpoint."
        case .malformedAnswer: "Check that the URL leads to the receiver's HTTP port."
        case .aborted: "Look in the receiver's log for what it can't accept."
        case .gone: "Check that the receiver still exists, then resume the endpoint or remove it."
        case .throttled: "Limit the rate of the endpoint if it happens often."
        }
    }
}
