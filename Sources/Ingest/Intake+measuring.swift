import AccountStore
import AppleTokens
import Spool
import Telemetry

extension Intake {
    /// Remembers the letters of a batch as durable. Call it before the batch is answered, so that a client that repeats
    /// a token after the answer causes no write.
    func remember(_ settled: [Settled]) {
        for case .letterKept(let received, _) in settled.map(\.effect) {
            durable.insert(received.tokenDigest, as: received.share)
        }
    }

    /// Counts what a batch did, once it is durable.
    func measure(_ settled: [Settled], from source: NotificationSource, since start: ContinuousClock.Instant) {
        let now = now()
        metrics.commitDuration.record(.now - start)
        metrics.batchSize.record(settled.count)
        for settled in settled {
            switch settled.effect {
            case .recorded(let received, let recorded):
                let event = received.notification.event
                metrics.notifications.increment(event.kind.rawValue, recorded.outcome.rawValue)
                metrics.eventLag.record(now.duration(since: event.time))
                // What comes from the spool was received before others that are stored already.
                metrics.lastNotification.gauge(received.notification.app.rawValue).raise(
                    to: Double(received.receivedAt.microseconds) / 1_000_000
                )
                if recorded.sessionsEnded > 0 {
                    metrics.sessionsEnded.increment(event.kind.endReason, by: recorded.sessionsEnded)
                }
            case .letterKept(let letter, let isNew):
                // What came as a notification reserved nothing, nor did what comes from the spool.
                guard source == .endpoint, case .deadLetter = settled.submission.work else { continue }
                if isNew {
                    budget.kept(letter.letter.reason)
                } else {
                    budget.release(letter.letter.reason)
                }
            }
        }
    }
}

extension AccountEvent.Kind {
    /// Why the sessions ended that an event of this kind ended.
    fileprivate var endReason: String {
        switch self {
        case .accountDeleted: "account-deleted"
        case .consentRevoked, .emailDisabled, .emailEnabled: "consent-revoked"
        }
    }
}

extension ReceivedDeadLetter {
    /// Whether Apple is known to have signed it.
    var isVerified: Bool { letter.verifiedKeyID != nil }

    /// Whose room it takes in the spool.
    var share: Spool.Share { isVerified ? .letters : .unverified }
}
