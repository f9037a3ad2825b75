import AccountStore
import AppleTokens
import Synchronization
import Telemetry

extension NotificationWriter {
    /// Says that PostgreSQL refused notifications for their data: no further attempt is made until an operator replays them.
    func reportRejected(_ settled: [Settled]) {
        let details = settled.compactMap { settled -> String? in
            guard case .letterKept(let received, isNew: true) = settled.effect else { return nil }
            return received.letter.reason == .storeRejected ? received.letter.detail : nil
        }
        guard let detail = details.first, line.withLock({ $0.rejectionComplaint.isDue(detail) }) else { return }
        intake.log.warning(
            "PostgreSQL refuses the data of a notification, which became a dead letter: siwad dead-letters show explains it",
            ["count": "\(details.count)", "detail": detail]
        )
    }
}
