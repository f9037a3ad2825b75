import AccountStore
package import AppleTokens
package import Basics
package import Spool
import Synchronization
package import Telemetry

/// What receivers, the writer and maintenance share: keys, policy, queue, limits and metrics.
package final class IngestService: Sendable {
    package struct Limits: Sendable {
        /// Notifications in one transaction (`SIWAD_BATCH_LIMIT`).
        package var batch = 256
        /// Notifications waiting for a transaction (`SIWAD_QUEUE_LIMIT`).
        package var queue = 8_192
        /// Bytes of these notifications (`SIWAD_QUEUE_BYTES`).
        package var queueBytes = 64 << 20
        /// Open dead letters per reason (`SIWAD_DEAD_LETTER_LIMIT`).
        package var deadLetters = 100_000
        /// Dead letters of older notifications are not replayed (`SIWAD_RETENTION`).
        package var retention = Duration.seconds(400 * 86_400)

        package init() {}
    }

    package let keys: KeyRing
    let spool: Spool?
    let limits: Limits
    let queue: SubmissionQueue
    let budget: DeadLetterBudget
    let durable = DurableTokens()
    package let events: EventLog
    let metrics: SiwadMetrics
    let log: Log
    let now: @Sendable () -> WallTime
    /// Signalled after each commit that changed a state, an address or sessions.
    let changes: WakeupEvent
    /// Verifies tokens that waited for a key; the receivers' own verifiers belong to their event loops.
    private let verifier: Mutex<NotificationVerifier>
    /// Counts the policies, so that a receiver notices a new one with one load.
    private let policyNumber = Atomic<Int>(0)

    /// A service that answers 503 until a ``NotificationWriter`` runs.
    package init(
        policy: NotificationPolicy,
        keys: KeyRing,
        spool: Spool? = nil,
        limits: Limits = Limits(),
        metrics: SiwadMetrics,
        log: Log,
        changes: WakeupEvent = WakeupEvent(),
        now: @escaping @Sendable () -> WallTime = { WallTime.now() }
    ) {
        self.keys = keys
        self.changes = changes
        self.spool = spool
        self.limits = limits
        self.queue = SubmissionQueue(limit: limits.queue, bytes: limits.queueBytes, hasSpool: spool != nil)
        self.budget = DeadLetterBudget(limit: limits.deadLetters)
        self.metrics = metrics
        self.log = log
        self.events = EventLog(log, metrics: metrics)
        self.now = now
        self.verifier = Mutex(NotificationVerifier(policy: policy))
        metrics.queueDepth.follow { [queue] in queue.depth }
        if let spool {
            metrics.spoolBytes.follow { Int(spool.bytes) }
            metrics.spoolLimit.set(Int(spool.limit))
            // Opening it wrote its mark and took its lock.
            metrics.spoolWritable.set(1)
        }
    }

    package var policy: NotificationPolicy { verifier.withLock { $0.policy } }

    /// Uses another policy from the next request on.
    package func replace(policy: NotificationPolicy) {
        verifier.withLock { $0 = NotificationVerifier(policy: policy) }
        policyNumber.wrappingAdd(1, ordering: .releasing)
        // A token may be judged differently now.
        durable.forgetAll()
    }

    var policyVersion: Int { policyNumber.load(ordering: .acquiring) }

    package var storage: Storage { queue.writer { $0.storage } }

    package var isStoring: Bool {
        queue.writer { $0.admission == .open && ($0.connection != nil || !$0.isSpoolFailing) }
    }

    package var spoolBytes: Int64? { spool?.bytes }

    package var isClosed: Bool { queue.writer { $0.admission == .closed } }

    package var queueDepth: Int { queue.depth }

    /// Accepts nothing more. What was accepted is still stored and answered.
    package func close() {
        _ = queue.update { $0.closed() }
    }

    func verify(_ token: [UInt8], receivedAt: WallTime) -> Decision {
        verifier.withLock { $0.verify(token: token, keys: keys.keys, now: receivedAt) }
    }
}

/// Limits the open dead letters of each reason.
///
/// The open letters are counted in the database at intervals, and this process counts the ones that it adds in between. With
/// several daemons the limit can therefore be exceeded by the letters that they add during an interval.
final class DeadLetterBudget: Sendable {
    /// Open letters without a verified signature: any client can cause them, so few are kept.
    static let unverifiedLimit = 1_000

    private struct State {
        var open: [DeadLetterReason: Int] = [:]
        /// Reserved, and not yet known to be in the database or not.
        var pending: [DeadLetterReason: Int] = [:]
        /// Written to the spool by this process, and not stored in the database since.
        var spooled: [DeadLetterReason: Int] = [:]
        /// Letters that a running count may miss: pending when it began, or reserved or stored from the spool since.
        var unseen: [DeadLetterReason: Int] = [:]
    }

    private let limit: Int
    private let state = Mutex(State())

    init(limit: Int) {
        self.limit = max(limit, 0)
    }

    /// Reserves room for one letter; false if its reason is at the limit.
    func reserve(_ reason: DeadLetterReason) -> Bool {
        let limit = reason == .keysUnavailable ? min(limit, Self.unverifiedLimit) : limit
        return state.withLock { state in
            let open = state.open[reason, default: 0]
            guard open < limit else { return false }
            state.open[reason] = open + 1
            state.pending[reason, default: 0] += 1
            state.unseen[reason, default: 0] += 1
            return true
        }
    }

    /// A reservation became a new letter in the database.
    func kept(_ reason: DeadLetterReason) {
        state.withLock { $0.pending[reason] = max(0, $0.pending[reason, default: 0] - 1) }
    }

    /// A reservation became no new letter.
    func release(_ reason: DeadLetterReason) {
        state.withLock { state in
            state.pending[reason] = max(0, state.pending[reason, default: 0] - 1)
            state.open[reason] = max(0, state.open[reason, default: 0] - 1)
            state.unseen[reason] = max(0, state.unseen[reason, default: 0] - 1)
        }
    }

    /// A letter was written to the spool.
    ///
    /// - Parameter isReserved: false if the writer still works on it, and ends the reservation.
    func spooled(_ reason: DeadLetterReason, isReserved: Bool = true) {
        state.withLock { state in
            if isReserved { state.pending[reason] = max(0, state.pending[reason, default: 0] - 1) }
            state.spooled[reason, default: 0] += 1
        }
    }

    /// A letter of the spool was stored in the database.
    func drained(_ reason: DeadLetterReason) {
        state.withLock { state in
            state.spooled[reason] = max(0, state.spooled[reason, default: 0] - 1)
            state.unseen[reason, default: 0] += 1
        }
    }

    /// Nothing waits in the spool: the database counts what was in it.
    func spoolEmptied() {
        state.withLock { $0.spooled = [:] }
    }

    func countingBegan() {
        state.withLock { $0.unseen = $0.pending }
    }

    /// The database counted the open letters since ``countingBegan()``. Letters that the count may have missed are added.
    func counted(_ open: [DeadLetterReason: Int]) {
        state.withLock { state in
            state.open = open.merging(state.unseen, uniquingKeysWith: +).merging(state.spooled, uniquingKeysWith: +)
        }
    }
}
