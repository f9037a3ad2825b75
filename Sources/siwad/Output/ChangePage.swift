import AccountStore
import AppleTokens
import Basics
import Effects
import Terminal

/// One published change: the event that receivers get, and what became of it at each endpoint.
struct ChangePage: CommandOutput {
    let change: PublishedChange
    let fates: [DeliveryFate]
    /// Only deliveries of changes that were published before this time can have been deleted after SIWAD_DELIVERY_RETENTION.
    let keptSince: WallTime

    func lines(style: OutputStyle) -> [String] {
        let cause = change.notificationID.map { "notification \($0)" }
        let session = change.sessionID.map { "an operator, who ended session \($0)" }
        let facts = [
            ("position", "\(change.position)"), ("type", change.type), ("sub", change.subject.rawValue),
            ("team", change.team.rawValue), ("app", change.app.rawValue),
            ("concerns", change.scope == "app" ? "this app group" : "all apps of the team"),
            ("change", "\(change.facet) \(change.fromState) → \(change.toState)"),
            ("sessions", "\(change.sessionsEnded) ended"), ("because of", cause ?? session ?? "a sign-in"),
            ("happened", "\(change.eventTime.secondText) UTC"), ("recorded", "\(change.recordedAt.secondText) UTC"),
            ("published", "\(change.publishedAt.secondText) UTC"), ("event", ChangeEvent(change).envelope.line),
        ]
        let deliveries = fates.map { ("endpoint", "\($0.endpoint.name): \($0.sentence(change, keptSince))") }
        return (facts + deliveries).map { name, text in name.padding(to: 12) + VisibleText.visible(text) }
    }

    /// The event, and a member for the deliveries.
    var json: [JSONText] {
        let event = ChangeEvent(change)
        return [.object(event.envelopeMembers + [.init("deliveries", .array(columns.objects(of: fates)))])]
    }

    private var columns: [Column<DeliveryFate>] {
        [
            .init("endpoint", \.endpoint.name),
            .init("status") { [change, keptSince] in $0.status(change, keptSince) },
            .init("attempts", \.delivery?.attempts),
            .init("next_attempt_at", \.delivery?.nextAttemptAt),
            .init("reason", \.delivery?.reason),
            .init("http_status", \.delivery?.httpStatus),
            .init("first_failed_at", \.delivery?.firstFailedAt),
            .init("resolved_at", \.delivery?.resolvedAt),
            .init("note", \.delivery?.note),
        ]
    }
}

extension DeliveryFate {
    /// Of the delivery, or why there is none.
    fileprivate func status(_ change: PublishedChange, _ keptSince: WallTime) -> String {
        if let delivery { return delivery.status.rawValue }
        if !isWanted { return "filtered-out" }
        if endpoint.createdAt > change.publishedAt { return "added-later" }
        return change.publishedAt < keptSince ? "deleted" : "not-wanted-then"
    }

    fileprivate func sentence(_ change: PublishedChange, _ keptSince: WallTime) -> String {
        guard let delivery else {
            return switch status(change, keptSince) {
            case "filtered-out": "filtered out"
            case "added-later": "none, as the endpoint was added later"
            case "not-wanted-then": "none, as its filter did not match when the change was published"
            default: "settled, and deleted after SIWAD_DELIVERY_RETENTION"
            }
        }
        let attempts = counted(delivery.attempts, "attempt")
        let answer = delivery.httpStatus.map { " (HTTP \($0))" } ?? ""
        let failure = "\(delivery.reason ?? "")\(answer)"
        return switch delivery.status {
        case .pending where delivery.isClaimed: "in its first attempt"
        case .pending: "pending" + (delivery.reason == nil ? "" : ", last answer: \(failure)")
        case .retry:
            "in retry after \(attempts): \(failure)"
                + (delivery.nextAttemptAt.map { ", next at \($0.secondText) UTC" } ?? "")
        case .dead: "dead after \(attempts): \(failure)"
        case .discarded: "discarded by \(delivery.resolvedBy ?? "")" + (delivery.note.map { ": \($0)" } ?? "")
        case .delivered:
            "delivered\(answer) with \(attempts)" + (delivery.resolvedAt.map { ", \($0.secondText) UTC" } ?? "")
        }
    }
}
