import AccountStore
package import AppleTokens
import JOSE
package import Spool
import Synchronization
package import Telemetry

/// From a request's body to its answer: verification, group commit, dead letters.
package final class Intake: Sendable {
    /// How much may wait and be kept.
    package struct Limits: Sendable {
        /// Notifications in one transaction (`SIWAD_BATCH_LIMIT`).
        package var batch = 256
        /// Notifications waiting for a transaction (`SIWAD_QUEUE_LIMIT`).
        package var queue = 8_192
        /// Bytes in these notifications (`SIWAD_QUEUE_BYTES`).
        package var queueBytes = 64 << 20
        /// Open dead letters per reason (`SIWAD_DEAD_LETTER_LIMIT`).
        package var deadLetters = 100_000
        /// Dead letters of older notifications are not replayed (`SIWAD_RETENTION`).
        package var retention = Duration.seconds(400 * 86_400)

        /// The contract's defaults.
        package init() {}
    }

    /// What a request leaves behind once its body was looked at.
    struct Request: Sendable {
        let receivedAt: WallTime
        let lane: ReplyLane
        let ticket: UInt64
    }

    /// Apple's keys.
    package let keys: KeyRing
    /// Where notifications wait while PostgreSQL is away.
    let spool: Spool?
    let limits: Limits
    let queue: IntakeQueue
    let budget: DeadLetterBudget
    /// What need not be written again.
    let durable = DurableTokens()
    let metrics: SiwadMetrics
    let log: Log
    /// The wall clock; another one in tests.
    let now: @Sendable () -> WallTime
    /// Verifies what had to wait for a key; the lanes' own verifiers belong to their event loops.
    private let lateVerifier: Mutex<NotificationVerifier>
    private let currentPolicy: Mutex<NotificationPolicy>
    /// Counts the policies, so that a lane sees at the cost of one load that there is another one.
    private let policyNumber = Atomic<Int>(0)
    private let currentStorage = Mutex(Storage.nowhere(cause: "PostgreSQL was not reached yet"))

    /// An intake that answers 503 until a ``NotificationWriter`` runs.
    package init(
        policy: NotificationPolicy,
        keys: KeyRing,
        spool: Spool? = nil,
        limits: Limits = Limits(),
        metrics: SiwadMetrics,
        log: Log,
        now: @escaping @Sendable () -> WallTime = { WallTime.now() }
    ) {
        self.currentPolicy = Mutex(policy)
        self.keys = keys
        self.spool = spool
        self.limits = limits
        self.queue = IntakeQueue(limit: limits.queue, bytes: limits.queueBytes)
        self.budget = DeadLetterBudget(limit: limits.deadLetters)
        self.metrics = metrics
        self.log = log
        self.now = now
        self.lateVerifier = Mutex(NotificationVerifier(policy: policy))
        metrics.queueDepth.follow { [queue] in queue.depth }
        if let spool { metrics.spoolBytes.follow { Int(spool.bytes) } }
    }

    /// What is accepted.
    package var policy: NotificationPolicy { currentPolicy.withLock { $0 } }

    /// Accepts something else from here on.
    package func replace(policy: NotificationPolicy) {
        currentPolicy.withLock { $0 = policy }
        lateVerifier.withLock { $0 = NotificationVerifier(policy: policy) }
        policyNumber.wrappingAdd(1, ordering: .releasing)
        durable.forgetAll()
    }

    /// Another number for another policy.
    var policyVersion: Int { policyNumber.load(ordering: .acquiring) }

    /// Where what comes in is made durable at present.
    package internal(set) var storage: Storage {
        get { currentStorage.withLock { $0 } }
        set { currentStorage.withLock { $0 = newValue } }
    }

    /// Whether what comes in can be made durable at present.
    package var isStoring: Bool {
        switch storage {
        case .database, .spool: queue.isServed
        case .nowhere: false
        }
    }

    /// What waits in the spool, in bytes; nil where there is none.
    package var spoolBytes: Int64? { spool?.bytes }

    /// Whether the end has begun.
    package var isClosed: Bool { queue.isClosed }

    /// How many wait for a transaction.
    package var queueDepth: Int { queue.depth }

    /// Takes nothing more in. What was taken in is still stored and answered.
    package func close() {
        queue.close()
    }

    // MARK: - For the lanes

    /// Hands work to the writer.
    ///
    /// - Returns: nil, or the answer when it is not taken in.
    func submit(_ submission: Submission) -> Answer? {
        switch queue.submit(submission) {
        case .accepted: nil
        case .full: .unavailable(.queueFull, retryAfterSeconds: 1)
        case .paused: .unavailable(.databaseUnavailable, retryAfterSeconds: 5)
        case .closed: .unavailable(.shuttingDown, retryAfterSeconds: 5)
        }
    }

    /// Hands a dead letter to the writer, unless its token is durable already.
    ///
    /// - Parameter answer: the answer once it is kept.
    /// - Returns: nil, or the answer when it is not taken in.
    func keep(_ letter: DeadLetter, of request: Request, whenKept answer: Answer) -> Answer? {
        let received = ReceivedDeadLetter(
            letter,
            tokenDigest: SHA256.digest(letter.token.span),
            receivedAt: request.receivedAt
        )
        if durable.contains(received.tokenDigest, as: received.share) { return answer }
        guard budget.reserve(letter.reason) else {
            // What can't be verified anyway is answered as it would be when kept.
            return received.isVerified ? .unavailable(.deadLetterLimit, retryAfterSeconds: 300) : answer
        }
        let submission = Submission(
            work: .deadLetter(received, whenKept: answer),
            lane: request.lane,
            ticket: request.ticket
        )
        let refusal = submit(submission)
        if refusal != nil { giveUp(received) }
        return refusal
    }

    /// Takes back what ``keep(_:of:whenKept:)`` reserved for a letter that was not kept.
    func giveUp(_ received: ReceivedDeadLetter) {
        budget.release(received.letter.reason)
    }

    /// Waits for a key and goes on from there; the answer always comes through the request's lane.
    func resolve(_ kid: String, token: [UInt8], of request: Request) {
        keys.want(kid, holding: Submission.overhead + token.count) { verdict in
            if let answer = self.answer(verdict, token: token, of: request) {
                request.lane.deliver([Reply(ticket: request.ticket, answer: answer)])
            }
        }
    }

    // MARK: - Private parts

    private func answer(_ verdict: KeySetCache.Resolution, token: [UInt8], of request: Request) -> Answer? {
        switch verdict {
        case .unknownKey:
            return .refused(.unknownKey)
        case .keysUnavailable(let seconds):
            return keep(
                .keysUnavailable(token: token),
                of: request,
                whenKept: .unavailable(.keysUnavailable, retryAfterSeconds: seconds)
            )
        case .keyFound:
            // Judged at its time of receipt: waiting for a key must not make it late.
            let judged = lateVerifier.withLock {
                $0.verify(token: token, keys: keys.keys, now: request.receivedAt)
            }
            switch judged {
            case .verified(let notification):
                let received = ReceivedNotification(notification, receivedAt: request.receivedAt)
                return submit(
                    Submission(work: .notification(received), lane: request.lane, ticket: request.ticket)
                )
            case .deadLetter(let letter):
                return keep(letter, of: request, whenKept: .acknowledged)
            case .refused(let rejection):
                return .refused(rejection)
            case .needsKey(_, let token):
                // The key went with a rotation between its arrival and now.
                return keep(
                    .keysUnavailable(token: token),
                    of: request,
                    whenKept: .unavailable(.keysUnavailable, retryAfterSeconds: 1)
                )
            }
        }
    }
}
