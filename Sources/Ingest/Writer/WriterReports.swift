import AccountStore
import AppleTokens
import Postgres
import Spool
import Synchronization
import Telemetry

/// Rate-limits repeated log messages about the same cause: another cause is logged immediately, the same one every 30 s.
struct RateLimitedLog: Sendable {
    private static let interval = Duration.seconds(30)
    private var last: (cause: String, at: ContinuousClock.Instant)?

    mutating func isDue(_ cause: String, at now: ContinuousClock.Instant = .now) -> Bool {
        if let last, last.cause == cause, now - last.at < Self.interval { return false }
        last = (cause, now)
        return true
    }

    /// The fault is over.
    ///
    /// - Returns: whether there was one.
    mutating func reset() -> Bool {
        defer { last = nil }
        return last != nil
    }
}

/// The writer's log messages and the metrics that belong to them.
final class WriterReports: Sendable {
    private enum Topic {
        case database, spool, refusal, rejection, unread, share, untrusted, unverified, overdue
    }

    private let log: Log
    private let metrics: SiwadMetrics
    private let hasSpool: Bool
    private let topics = Mutex<[Topic: RateLimitedLog]>([:])

    init(log: Log, metrics: SiwadMetrics, hasSpool: Bool) {
        self.log = log
        self.metrics = metrics
        self.hasSpool = hasSpool
    }

    private func isDue(_ topic: Topic, _ cause: String = "") -> Bool {
        topics.withLock { $0[topic, default: RateLimitedLog()].isDue(cause) }
    }

    // MARK: - PostgreSQL

    func databaseAway(_ error: any Error) {
        metrics.databaseUp.set(0)
        guard isDue(.database, "\(error)") else { return }
        let consequence = hasSpool ? "notifications wait in the spool" : "notifications are answered 503 until it can"
        log.error("PostgreSQL can't be written to; \(consequence)", ["error": "\(error)"])
    }

    func databaseConnected() {
        metrics.databaseUp.set(1)
        guard topics.withLock({ $0[.database, default: RateLimitedLog()].reset() }) else { return }
        log.notice("PostgreSQL can be written to again")
    }

    func connectionBroke(_ error: PostgresError) {
        log.warning("the connection to PostgreSQL broke; connecting again", ["error": "\(error)"])
    }

    /// PostgreSQL refuses notifications that it may accept later.
    func refused(_ count: Int, _ refusal: PostgresError) {
        guard isDue(.refusal, "\(refusal)") else { return }
        let consequence = hasSpool ? "waits in the spool" : "is answered 503"
        log.error(
            "PostgreSQL refuses a notification, or another session's lock delays it; it \(consequence)",
            ["count": "\(count)", "error": "\(refusal)"]
        )
    }

    /// PostgreSQL refused notifications because of their data. They are not tried again until an operator replays them.
    func rejected(_ settled: [Settled]) {
        let details = settled.compactMap { settled -> String? in
            guard case .letterKept(let received, isNew: true) = settled.effect else { return nil }
            return received.letter.reason == .storeRejected ? received.letter.detail : nil
        }
        guard let detail = details.first, isDue(.rejection, detail) else { return }
        log.warning(
            "PostgreSQL refuses the data of a notification, which became a dead letter: siwad dead-letters show explains it",
            ["count": "\(details.count)", "detail": detail]
        )
    }

    func answeredOverdue() {
        guard isDue(.overdue) else { return }
        log.warning("PostgreSQL keeps notifications waiting; they are answered from the spool")
    }

    // MARK: - The spool

    /// - Parameter isAway: PostgreSQL can't be written to either.
    func spoolFailed(_ cause: String, isAway: Bool) {
        guard isDue(.spool, cause) else { return }
        let consequence = isAway ? "notifications are answered 503" : "PostgreSQL takes all notifications until it can"
        log.error("the spool can't be written to; \(consequence)", ["error": cause])
    }

    func spoolWorksAgain() {
        _ = topics.withLock { $0[.spool, default: RateLimitedLog()].reset() }
        log.notice("the spool can be written to again")
    }

    /// Dead letters have used up their share of the spool. Notifications still find room.
    func shareUsedUp(_ error: SpoolError) {
        guard isDue(.share) else { return }
        log.error("no more dead letters are kept until PostgreSQL is back", ["error": "\(error)"])
    }

    func setAside(_ files: [Spool.SetAside]) {
        for file in files {
            metrics.spoolFilesSetAside.increment(file.reason.rawValue)
            log.error(
                "a file in the spool directory was set aside; look at it, and remove it when nothing in it is needed",
                ["file": file.path, "reason": file.reason.rawValue]
            )
        }
    }

    func untrusted(_ files: [String]) {
        metrics.spoolFilesUntrusted.set(files.count)
        guard let first = files.first, isDue(.untrusted, first) else { return }
        log.error(
            "a file in the spool directory is not trusted and not read; if siwad wrote it, give it to siwad's user alone "
                + "(chown, chmod 600), else remove it",
            ["file": first, "count": "\(files.count)"]
        )
    }

    func unread(_ error: SpoolError?) {
        guard let error, isDue(.unread, "\(error)") else { return }
        log.error(
            "a file in the spool can't be read; it stays and is tried again: give it to siwad's user, or check the disk",
            ["error": "\(error)"]
        )
    }

    // MARK: - Draining the spool

    func drained(_ requests: Int) {
        guard requests > 0 else { return }
        log.notice("stored what was in the spool", ["requests": "\(requests)"])
    }

    func drainFailed(_ error: any Error) {
        guard isDue(.database, "\(error)") else { return }
        log.error("what is in the spool can't be stored; trying again", ["error": "\(error)"])
    }

    func drainRefused(_ count: Int, _ refusal: PostgresError) {
        guard count > 0, isDue(.refusal, "\(refusal)") else { return }
        log.error(
            "PostgreSQL refuses notifications that wait in the spool; they stay there as .refused.spool and are tried again",
            ["count": "\(count)", "error": "\(refusal)"]
        )
    }

    func unverified(_ count: Int) {
        guard count > 0 else { return }
        metrics.spoolUnverified.increment(by: count)
        guard isDue(.unverified) else { return }
        log.warning(
            "notifications from the spool could not be verified again because their keys are not known; they are stored as "
                + "verified at receipt: check that only siwad writes to the spool directory",
            ["count": "\(count)"]
        )
    }
}
