import Postgres
import Synchronization
package import Telemetry

/// Rate-limits repeated log messages about the same cause: another cause of the same topic is logged immediately, the same
/// one every 30 s.
package final class FaultLog: Sendable {
    package enum Topic: Sendable, Hashable {
        case database, spool, refusal, rejection, unread, share, untrusted, unverified, overdue
        case keysRead, keysStored, settlement, letterCount
        case signIns, signInBatches, tokenCounts, sealing
        /// With the cause, one of a closed set, so that alternating causes are logged no more often.
        case appleClient(String), appleCode(String), appleTokens(String), refusedSignIn(String)
    }

    private let log: Log
    private let logged = Mutex<[Topic: (cause: String, at: ContinuousClock.Instant)]>([:])

    package init(_ log: Log) {
        self.log = log
    }

    package func error(_ topic: Topic, _ message: String, _ error: any Error) {
        let cause = Self.cause(error)
        if isDue(topic, cause) { log.error(message, ["error": cause]) }
    }

    package func warning(_ topic: Topic, _ message: String, _ error: any Error) {
        let cause = Self.cause(error)
        if isDue(topic, cause) { log.warning(message, ["error": cause]) }
    }

    private static func cause(_ error: any Error) -> String { (error as? PostgresError)?.advised ?? "\(error)" }

    package func isDue(_ topic: Topic, _ cause: String = "") -> Bool {
        let now = ContinuousClock.now
        return logged.withLock { logged in
            if let last = logged[topic], last.cause == cause, now - last.at < .seconds(30) { return false }
            logged[topic] = (cause, now)
            return true
        }
    }

    /// Returns whether there was such a fault.
    package func ended(_ topic: Topic) -> Bool {
        logged.withLock { $0.removeValue(forKey: topic) != nil }
    }
}
