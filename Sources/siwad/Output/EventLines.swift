import AccountStore
import AppleTokens
import Basics
import Ingest
import Terminal

extension IngestEvent {
    /// What `siwad dev` prints while it serves.
    func lines(style: OutputStyle) -> [String] {
        let text: String
        var (mark, color) = ("✗", Color.red)
        switch self {
        case .stored(let notification, let recorded, let account):
            (mark, color) = ("✓", .green)
            let person = account.map { "account \($0)" } ?? "an unknown account"
            let words = recorded.words(for: notification.event.kind)
            text = "\(notification.event.rawType) of \(person) in \(notification.app): \(words)"
        case .deadLetter(let id, let reason):
            (mark, color) = ("⚠", .yellow)
            let command = "siwad dead-letters show \(id) --config \(DevelopmentPlace.configurationFile)"
            text = "dead letter \(id), \(reason.rawValue): \(command) explains it"
        case .omitted(let count, let what):
            mark = " "
            text = "and \(count.grouped) more in the last second: \(what)"
        case .refused(let reason, let count): text = "refused, \(reason) × \(count.grouped)"
        case .unavailable(let reason, let count): text = "answered 503, \(reason) × \(count.grouped)"
        }
        let time = WallTime.now().secondText.suffix(8)
        return style.check(style.painted(mark, color), String(time), nameWidth: time.count, VisibleText.visible(text))
    }
}

extension RecordedNotification {
    fileprivate func words(for kind: AccountEvent.Kind) -> String {
        switch outcome {
        case .applied: kind.isAboutEmail ? "applied" : "applied, \(counted(sessionsEnded, "session")) ended"
        case .superseded: "superseded, something newer is known"
        case .unchanged: "unchanged, it was known already"
        case .duplicate: "duplicate, it was stored before"
        }
    }
}
