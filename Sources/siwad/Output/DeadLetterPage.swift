import AccountStore
import AppleTokens
import Basics
import Ingest
import JOSE
import Settings
import Terminal

/// Everything about one dead letter: the cause, the next step, its attempts, and its token checked and decoded.
struct DeadLetterPage: CommandOutput {
    private let record: DeadLetterRecord
    private let advice: DeadLetterAdvice
    /// nil: the body contains no token.
    private let explanation: Explanation?
    private let token: [UInt8]

    /// - Parameter keys: the stored keys of Apple.
    init(_ record: DeadLetterRecord, keys: [SigningKeys.Seen], configuration: Configuration, now: WallTime) throws {
        self.record = record
        let keys = ReplayKeys(today: [], kept: keys, problem: nil)
        let (apps, leeway) = (configuration.apps, configuration.clockLeeway)
        advice = DeadLetterAdvice(on: record, apps: apps, leeway: leeway, keys: keys, now: now)
        // The page says that the body contains no token.
        let token = (try? NotificationBody.token(in: record.body)) ?? []
        self.token = token
        let authority = record.letter.verifiedKeyID.map { Authority.record(keyID: $0) } ?? .signature(keys.set)
        explanation =
            token.isEmpty
            ? nil
            : try Explanation(of: token, configuration) {
                $0.explain(token: token, authority: authority, receivedAt: record.letter.receivedAt, now: now)
            }
    }

    private var letter: KeptDeadLetter { record.letter }

    private var command: String? {
        advice.command.map { command in
            let isReplay = command.hasPrefix("dead-letters replay")
            return nextCommand(command, accepting: isReplay ? [.databaseURL, .apps, .keysURL] : [.databaseURL])
        }
    }

    func lines(style: OutputStyle) -> [String] {
        let title = "dead letter \(letter.id), \(letter.status.rawValue): \(letter.rawReason)"
        var lines = [style.painted(VisibleText.visible(title), .bold)]
        lines += [advice.cause, advice.remedy].flatMap { style.hanging("  ", indentation: 2, $0) }
        if let command { lines.append("    " + VisibleText.visible(command)) }
        lines += [""] + style.facts(facts, nameWidth: 11)
        lines += ["", style.painted("ATTEMPTS", .bold)]
        lines += attemptTable.lines(style: style, indentation: 2)
        lines += ["", style.painted("CHECKS", .bold)]
        lines +=
            explanation.map { $0.lines(style: style).map { "  " + $0 } }
            ?? [record.isBodyHidden ? "  the token is hidden from this database role" : "  the body contains no token"]
        // The checks explain why a token can't be decoded.
        if let jws = try? CompactJWS(parsing: token) {
            lines += ["", style.painted("TOKEN", .bold)] + DecodedToken(jws).lines(style: style).map { "  " + $0 }
        }
        return lines
    }

    var json: [JSONText] {
        let columns: [Column<DeadLetterPage>] = [
            .init("cause", \.advice.cause),
            .init("remedy", \.advice.remedy),
            .init("command", \.command),
            .init("earlier_attempts") { Self.attemptColumns.objects(of: $0.record.earlierAttempts) },
            .init("checks", \.explanation?.json),
            .init("jws") { page in page.token.isEmpty ? nil : String(decoding: page.token, as: UTF8.self) },
        ]
        return [.object(DeadLetterListing.columns.members(of: letter) + columns.members(of: self))]
    }

    private var facts: [(name: String, text: String)] {
        var received = "\(letter.receivedAt.secondText) UTC"
        if letter.deliveries > 1 {
            received += ", at least \(letter.deliveries) times until \(letter.lastReceivedAt.secondText) UTC"
        }
        var facts = [("received", received)]
        let named = [
            ("jti", letter.notificationID), ("app", letter.audience), ("sub", letter.subject),
            ("type", letter.eventType),
        ]
        facts += named.compactMap { name, text in text.map { (name, $0) } }
        let verified = letter.verifiedAt.map { "\($0.secondText) UTC by the key \(letter.verifiedKeyID ?? "")" }
        facts.append(("verified", verified ?? "not yet: nothing in it can be trusted"))
        if let resolvedAt = letter.resolvedAt, let by = letter.resolvedBy {
            let outcome = letter.outcome.map { ": \($0)" } ?? ""
            let role = letter.resolvedByRole.map { " (database role \($0))" } ?? ""
            facts.append((letter.status.rawValue, "\(resolvedAt.secondText) UTC by \(by)\(role)\(outcome)"))
        }
        if let note = letter.note { facts.append(("note", note)) }
        return facts
    }

    private static var attemptColumns: [Column<DeadLetterAttempt>] {
        [
            .init("attempt", \.number, "NO", .right),
            .init("attempted_at", \.attemptedAt, "TIME (UTC)"),
            .init("operator", \.operatorName, "BY", .cutEnd(minimum: 8)) { Table.Cell($0.operatorName ?? "receipt") },
            .init("database_role", \.databaseRole),
            .init("reason", \.reason, "FOUND"),
            .init("detail", \.detail, "DETAIL", .cutEnd(minimum: 12)),
        ]
    }

    /// The attempts that failed, and the replay that succeeded.
    private var attemptTable: Table {
        var table = Self.attemptColumns.table(of: record.earlierAttempts)
        table.append([
            Table.Cell("\(record.earlierAttempts.count + 1)"),
            Table.Cell((letter.lastFailedAt ?? letter.receivedAt).minuteText),
            Table.Cell(letter.lastFailedBy ?? "receipt"), Table.Cell(letter.rawReason), Table.Cell(letter.detail),
        ])
        if letter.status == .replayed {
            table.append([
                Table.Cell("\(letter.attempts)"), Table.Cell(letter.resolvedAt?.minuteText),
                Table.Cell(letter.resolvedBy), Table.Cell(letter.outcome, color: .green),
            ])
        }
        return table
    }
}
