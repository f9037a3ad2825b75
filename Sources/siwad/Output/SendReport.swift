import AccountStore
import WebClient
import AppleTokens
import Basics
import JOSE
import Terminal

/// What became of a notification that was sent, in words.
struct SentFate: Sendable, Hashable {
    /// `applied`, `superseded`, `unchanged`, `duplicate`, `dead-letter`, `not-yet-stored`, `refused`, or `unavailable`.
    let outcome: String
    var detail: String?

    var text: String { detail.map { "\(outcome): \($0)" } ?? outcome }

    static let duplicate = SentFate(outcome: "duplicate", detail: "a notification with this jti was stored before")

    /// - Parameter fate: nil if the database does not have the notification although it was accepted.
    init(_ fate: NotificationFate?) {
        switch fate {
        case .stored(let stored): self.init(outcome: stored.outcome, detail: stored.detail)
        case .deadLetter(let id, let reason):
            let show = nextCommand("dead-letters show \(id)")
            self.init(outcome: "dead-letter", detail: "\(reason): \(show) explains it")
        case nil:
            let doctor = nextCommand("doctor")
            let places = "it waits in the spool, or the endpoint uses another database: \(doctor) says which"
            self.init(outcome: "not-yet-stored", detail: places)
        }
    }

    /// Of a notification that the endpoint did not accept.
    ///
    /// - Parameter body: a problem (RFC 9457), as siwad answers. Other servers may answer anything.
    init(status: Int, body: String) {
        let problem = try? JSONValue(parsing: Array(body.utf8))
        let reason = problem?["type"]?.string?.split(separator: ":").last.map(String.init)
        let texts = [reason, problem?["title"]?.string].compactMap(\.self)
        let detail = texts.isEmpty ? "\(status) \(body)" : texts.joined(separator: ": ")
        self.init(outcome: status == 503 ? "unavailable" : "refused", detail: VisibleText.visible(detail))
    }

    private init(outcome: String, detail: String?) {
        (self.outcome, self.detail) = (outcome, detail)
    }

    /// Equal fates with their number, the most frequent first. If there are many, those with the same outcome count as equal.
    static func counted(_ fates: [SentFate]) -> [(fate: SentFate, count: Int)] {
        var counts = Dictionary(fates.map { ($0, 1) }, uniquingKeysWith: +)
        if counts.count > 10 {
            counts = Dictionary(
                counts.map { (SentFate(outcome: $0.outcome, detail: nil), $1) },
                uniquingKeysWith: +
            )
        }
        return counts.sorted { ($1.value, $0.key.text) < ($0.value, $1.key.text) }.map { ($0.key, $0.value) }
    }
}

extension NotificationFate.Stored {
    fileprivate var detail: String {
        switch outcome {
        case "applied":
            AccountEvent.Kind(appleType: eventType)?.effect(sessionsEnded: sessionsEnded) ?? eventType
        case "superseded": decisive ?? "something newer was known"
        default: "this was known already"
        }
    }

    /// The fact that decides instead of the notification's own.
    private var decisive: String? {
        if let deletedAt { return "the account was deleted at \(deletedAt.secondText) UTC" }
        let isAboutMail = AccountEvent.Kind(appleType: eventType)?.isAboutEmail ?? false
        let facts: [(String, WallTime?)] =
            isAboutMail
            ? [("the email-disabled event", forwardingDisabledAt), ("the email-enabled event", forwardingEnabledAt)]
            : [("the sign-in", authorizedAt), ("the revocation", revokedAt)]
        let newest = facts.compactMap { name, time in time.map { (name: name, time: $0) } }.max { $0.time < $1.time }
        return newest.map { "\($0.name) at \($0.time.secondText) UTC is newer" }
    }
}

extension AccountEvent.Kind {
    /// `consent revoked, 1 session ended`
    fileprivate func effect(sessionsEnded: Int) -> String {
        let ended = counted(sessionsEnded, "session") + " ended"
        return switch self {
        case .emailDisabled: "mail off"
        case .emailEnabled: "mail on"
        case .consentRevoked: "consent revoked, \(ended)"
        case .accountDeleted: "account deleted, \(ended)"
        }
    }
}

struct SendReport: CommandOutput {
    let summary: SendSummary
    /// Of each notification that was answered; nil if no database could be asked, and none was refused.
    var fates: [SentFate]?

    private var sent: Int { summary.statuses.values.reduce(summary.failures, +) }
    private var accepted: Int { summary.statuses[200, default: 0] }
    private var byStatus: [(key: Int, value: Int)] { summary.statuses.sorted { $0.key < $1.key } }

    func lines(style: OutputStyle) -> [String] {
        [sending]
            + SentFate.counted(fates ?? []).flatMap { fate, count in
                let number = sent == 1 ? "" : "\(count.grouped) × "
                return style.hanging(number, indentation: number.count, fate.text)
            }
    }

    /// `1000 sent in 2.1 s, 476 a second: 200 × 998, 503 × 2; half within 1.2 ms, 99 % within 4.0 ms`
    private var sending: String {
        var parts = byStatus.map { "\($0.key) × \($0.value)" }
        if summary.failures > 0 { parts.append("no answer × \(summary.failures)") }
        let seconds = summary.duration / .seconds(1)
        var text = "\(sent) sent in \(Self.rounded(seconds)) s"
        if sent > 1, seconds > 0 { text += ", \(Int(Double(sent) / seconds)) a second" }
        text += ": " + parts.joined(separator: ", ")
        guard let half = summary.latency(ofShare: 0.5), let most = summary.latency(ofShare: 0.99) else { return text }
        if sent == 1 { return text + "; after \(Self.rounded(half / .milliseconds(1))) ms" }
        let (median, slow) = (Self.rounded(half / .milliseconds(1)), Self.rounded(most / .milliseconds(1)))
        return text + "; half within \(median) ms, 99 % within \(slow) ms"
    }

    var json: [JSONText] {
        func microseconds(_ share: Double) -> JSONText {
            summary.latency(ofShare: share).map { Int64($0 / .microseconds(1)) }.json
        }
        return [
            .object([
                .init("sent", sent.json),
                .init("statuses", .object(byStatus.map { .init("\($0.key)", $0.value.json) })),
                .init("failures", summary.failures.json),
                .init("first_failure", summary.firstFailure.json),
                .init("duration_ms", Int(summary.duration / .milliseconds(1)).json),
                .init("p50_us", microseconds(0.5)),
                .init("p99_us", microseconds(0.99)),
                .init("outcomes", outcomes),
            ])
        ]
    }

    private var outcomes: JSONText {
        guard let fates else { return .null }
        return .array(
            SentFate.counted(fates).map { fate, count in
                .object([
                    .init("outcome", .string(fate.outcome)), .init("detail", fate.detail.json),
                    .init("count", count.json),
                ])
            }
        )
    }

    var failure: CommandFailure? {
        if accepted == sent { return nil }
        if summary.statuses.isEmpty {
            return CommandFailure(.unavailable, "no answer: \(summary.firstFailure ?? "unknown"): check the URL")
        }
        let refused = "\(sent - accepted) of \(sent) were not accepted"
        return CommandFailure(accepted == 0 ? .failed : .partlyFailed, refused)
    }

    private static func rounded(_ value: Double) -> String { "\((value * 10).rounded() / 10)" }
}
