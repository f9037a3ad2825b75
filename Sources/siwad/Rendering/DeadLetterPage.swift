import AccountStore
import AppleTokens
import Ingest
import JOSE
import Settings
import Terminal

/// Everything about one dead letter: what happened, what to do, its token check by check and decoded.
struct DeadLetterPage {
    private let record: DeadLetterRecord
    private let advice: DeadLetterAdvice
    /// nil: the body holds no token.
    private let explanation: Explanation?
    private let token: [UInt8]

    /// The page of a letter.
    ///
    /// - Parameter keys: every key that was seen so far.
    init(
        _ record: DeadLetterRecord,
        keys: [SigningKeys.Seen],
        configuration: Configuration,
        now: WallTime
    ) throws {
        self.record = record
        let keys = ReplayKeys(today: [], kept: keys, problem: nil)
        advice = DeadLetterAdvice(
            on: record,
            apps: configuration.apps,
            leeway: configuration.clockLeeway,
            keys: keys,
            now: now
        )
        do throws(Rejection) {
            token = try NotificationBody.token(in: record.body)
        } catch {
            token = []
        }
        guard !token.isEmpty else {
            explanation = nil
            return
        }
        let authority = record.letter.verifiedKeyID.map { Authority.record(keyID: $0) } ?? .signature(keys.set)
        explanation = try Explanation(
            ofKept: token,
            authority: authority,
            receivedAt: record.letter.receivedAt,
            configuration: configuration,
            now: now
        )
    }

    private var letter: KeptDeadLetter { record.letter }

    /// The page.
    func lines(style: OutputStyle) -> [String] {
        let title = "dead letter \(letter.id), \(letter.status.rawValue): \(letter.rawReason)"
        var lines = [style.painted(VisibleText.visible(title), .bold)]
        lines += Self.indented(advice.cause, style) + Self.indented(advice.remedy, style)
        if let command = advice.command { lines.append("    " + VisibleText.visible(command)) }
        lines.append("")
        for (name, text) in facts {
            let wrapped = VisibleText.wrapped(text, to: style.width.map { $0 - 13 })
            lines += wrapped.enumerated().map { ($0 == 0 ? "  " + name.padding(to: 11) : Self.margin(13)) + $1 }
        }
        lines += ["", style.painted("ATTEMPTS", .bold)]
        lines += attemptTable.lines(style: style, indentation: 2)
        lines += ["", style.painted("CHECKS", .bold)]
        lines +=
            explanation.map { $0.lines(style: style).map { "  " + $0 } }
            ?? [record.isBodyHidden ? "  the token is hidden from this database role" : "  the body holds no token"]
        if let decoded { lines += ["", style.painted("TOKEN", .bold)] + decoded.lines(style: style).map { "  " + $0 } }
        return lines
    }

    /// The page as one object.
    var json: JSONText {
        .object(
            DeadLetterListing.json(letter) + [
                .init("cause", .string(advice.cause)),
                .init("remedy", .string(advice.remedy)),
                .init("command", JSONText(advice.command)),
                .init(
                    "earlier_attempts",
                    .array(
                        record.earlierAttempts.map { attempt in
                            .object([
                                .init("attempt", .integer(Int64(attempt.number))),
                                .init("attempted_at", attempt.attemptedAt.json),
                                .init("operator", JSONText(attempt.operatorName)),
                                .init("database_role", JSONText(attempt.databaseRole)),
                                .init("reason", .string(attempt.reason)), .init("detail", .string(attempt.detail)),
                            ])
                        }
                    )
                ),
                .init("checks", explanation.map { .array($0.json) } ?? nil),
                .init("jws", token.isEmpty ? nil : .string(String(decoding: token, as: UTF8.self))),
            ]
        )
    }

    private var facts: [(name: String, text: String)] {
        var received = "\(letter.receivedAt.column) UTC"
        if letter.deliveries > 1 {
            received += ", at least \(letter.deliveries) times until \(letter.lastReceivedAt.column) UTC"
        }
        var facts = [("received", received)]
        let named = [
            ("jti", letter.notificationID), ("app", letter.audience), ("sub", letter.subject),
            ("type", letter.eventType),
        ]
        facts += named.compactMap { name, text in text.map { (name, $0) } }
        let verified = letter.verifiedAt.map { "\($0.column) UTC by the key \(letter.verifiedKeyID ?? "")" }
        facts.append(("verified", verified ?? "not yet: nothing in it may be believed"))
        if let resolvedAt = letter.resolvedAt, let by = letter.resolvedBy {
            let outcome = letter.outcome.map { ": \($0)" } ?? ""
            let role = letter.resolvedByRole.map { " (database role \($0))" } ?? ""
            facts.append((letter.status.rawValue, "\(resolvedAt.column) UTC by \(by)\(role)\(outcome)"))
        }
        if let note = letter.note { facts.append(("note", note)) }
        return facts
    }

    private var attemptTable: Table {
        var table = Table([
            .init("NO", isRightAligned: true), .init("TIME (UTC)"), .init("BY", cut: .end), .init("FOUND"),
            .init("DETAIL", cut: .end, minimumWidth: 12),
        ])
        for attempt in record.earlierAttempts {
            table.append([
                Table.Cell("\(attempt.number)"), Table.Cell(attempt.attemptedAt.shortColumn),
                Table.Cell(attempt.operatorName ?? "receipt"), Table.Cell(attempt.reason), Table.Cell(attempt.detail),
            ])
        }
        let vain = record.earlierAttempts.count + 1
        table.append([
            Table.Cell("\(vain)"), Table.Cell((letter.lastFailedAt ?? letter.receivedAt).shortColumn),
            Table.Cell(letter.lastFailedBy ?? "receipt"), Table.Cell(letter.rawReason), Table.Cell(letter.detail),
        ])
        if letter.status == .replayed {
            table.append([
                Table.Cell("\(letter.attempts)"), Table.Cell(letter.resolvedAt?.shortColumn),
                Table.Cell(letter.resolvedBy), Table.Cell(letter.outcome, color: .green), Table.Cell(nil),
            ])
        }
        return table
    }

    private var decoded: DecodedToken? {
        // The checks say what is wrong with a token that can't be decoded.
        (try? CompactJWS(parsing: token)).map { DecodedToken($0) }
    }

    private static func indented(_ text: String, _ style: OutputStyle) -> [String] {
        VisibleText.wrapped(text, to: style.width.map { $0 - 2 }).map { "  " + $0 }
    }

    private static func margin(_ width: Int) -> String { String(repeating: " ", count: width) }
}
