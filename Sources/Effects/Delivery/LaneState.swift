import AccountStore
import Basics

/// What the lane of one endpoint knows: its circuit and rate, the deliveries that it holds, and what is to be stored.
///
/// Inputs are events in the past tense. It does no I/O and reads no clock.
struct LaneState {
    typealias Held = HeldDeliveries.Held

    /// An outcome that is not stored.
    struct Ended: Sendable {
        let outcome: SettledDelivery
        /// The end of its claim.
        let validUntil: ContinuousClock.Instant
        /// False if it was claimed only.
        let wasSent: Bool
    }

    /// What is to be stored with one statement each, over one connection.
    struct Unstored: Sendable {
        fileprivate(set) var ended: [Ended] = []
        fileprivate(set) var health: EndpointState?
        /// The reason why siwad is to disable the endpoint.
        fileprivate(set) var disabling: Endpoint.StatusReason?

        var outcomes: [SettledDelivery] { ended.map(\.outcome) }
        var isEmpty: Bool { ended.isEmpty && health == nil && disabling == nil }
    }

    struct Claim: Sendable, Equatable {
        /// The deliveries to claim; zero: none.
        let capacity: Int
        /// How many of them may be retries.
        let retries: Int
        /// True if more retries could be claimed, but fresh deliveries come first.
        let leavesRetries: Bool
        /// Set if the circuit is open; then one delivery is claimed.
        let probe: Circuit.Probe?

        static let nothing = Claim(capacity: 0, retries: 0, leavesRetries: false, probe: nil)
    }

    /// A request that has ended.
    struct Attempt: Sendable {
        let held: Held
        let outcome: AttemptOutcome
        let answer: EndpointAnswer
        let startedAt: WallTime
        let duration: Duration
        /// A request that the shutdown interrupted is no attempt.
        let isInterrupted: Bool
    }

    /// Until deliveries that other processes made due are looked for.
    private static let interval = Duration.seconds(1)

    private let configuration: EndpointConfiguration
    private let budget: RequestBudget
    private(set) var circuit: Circuit
    private var rate: RequestRate
    private var health: EndpointState
    /// True if the stored health differs.
    private var isHealthUnstored = false
    /// The health must be stored with the next statement, because the circuit changed.
    private var mustStoreHealth: Bool
    private var healthStoredAt: ContinuousClock.Instant?
    private(set) var ended: [Ended] = []
    private(set) var held: HeldDeliveries
    /// Taken from the budget.
    private var borrowed = 0
    private var retryShare = RetryShare()
    /// The last claim left retries to fresh deliveries, and found too few of these.
    private var mustClaimRetries = false
    /// When the next retry that was scheduled here is due.
    private var retryDue: ContinuousClock.Instant?
    /// The receiver wants no more events.
    private var isGone = false
    /// Requests of the lanes that delivered to the endpoint before it was changed.
    private var earlierRequests = 0
    /// When requests under way are interrupted; nil until the lane has finished.
    private(set) var deadline: ContinuousClock.Instant?
    /// True once nothing is under way, and nothing more is stored.
    private(set) var isClosed = false

    init(
        _ endpoint: Endpoint,
        _ stored: EndpointState,
        budget: RequestBudget,
        at now: ContinuousClock.Instant,
        _ time: WallTime
    ) {
        configuration = endpoint.configuration
        self.budget = budget
        circuit = Circuit(concurrency: configuration.concurrency, stored.persisted)
        rate = RequestRate(configuration.rate, at: now)
        health = stored
        // Another daemon may store a later failure. Nothing is stored for what is nil.
        (health.lastReason, health.lastHTTPStatus, health.lastDetail) = (nil, nil, nil)
        held = HeldDeliveries(at: now)
        // What was before an operator resumed it does not count.
        let isResumed = stored.failingSince.map { endpoint.statusAt > $0 } ?? false
        mustStoreHealth = isResumed ? circuit.operatorResumed().contains(.persist) : false
        // A daemon of an earlier version may have stored a failure that a success ended.
        let known = isResumed ? .init() : stored.persisted
        _ = circuit.learned(known, isPause: stored.isPause, lastSuccessAt: stored.lastSuccessAt, at: time)
    }

    /// Nothing more is sent.
    private var isFinished: Bool { deadline != nil || isGone }

    /// The requests that may be under way, apart from a probe.
    private var limit: Int {
        guard !isFinished, case .send(let limit) = circuit.standing else { return 0 }
        return max(0, min(limit - earlierRequests, borrowed + 1))
    }

    /// True if a statement now lets requests be sent that otherwise wait for the end of the pace.
    var isUrgent: Bool {
        held.count == 0 || held.areBlocked(below: limit) || mustStoreHealth || deadline != nil
    }

    /// How long nothing can be due that this lane knows of.
    func pause(at now: ContinuousClock.Instant, _ time: WallTime) -> Duration {
        var pause = Self.interval
        // A time in the past: nothing waits that could be sent as the probe.
        if case .wait(let until) = circuit.standing, until > time {
            pause = min(pause, max(.milliseconds(1), until.duration(since: time)))
        }
        guard deadline == nil else { return pause }
        if mustClaimRetries { return .milliseconds(1) }
        if earlierRequests > 0 { pause = min(pause, .milliseconds(100)) }
        if let due = retryDue { pause = min(pause, max(.milliseconds(1), due - now)) }
        // While the circuit is open, nothing is counted against the rate.
        guard case .send(let limit) = circuit.standing, limit > 0, rate.pause > .zero else { return pause }
        return min(pause, max(.milliseconds(1), rate.pause))
    }

    // MARK: - Inputs

    /// Another daemon may have stored a newer state.
    mutating func learned(_ stored: EndpointState, at time: WallTime) {
        guard !mustStoreHealth else { return }
        _ = circuit.learned(stored.persisted, isPause: stored.isPause, lastSuccessAt: stored.lastSuccessAt, at: time)
    }

    /// So many requests of the lanes before this one have not ended.
    mutating func counted(earlierRequests count: Int) { earlierRequests = count }

    /// Nothing more is claimed or sent. The earliest deadline counts.
    mutating func finished(at now: ContinuousClock.Instant, within grace: Duration) {
        deadline = min(deadline ?? now + grace, now + grace)
    }

    /// The next delivery to send now; nil if there is none, or if the circuit allows no further request.
    mutating func next(at now: ContinuousClock.Instant) -> Held? {
        isFinished ? nil : held.next(below: limit, at: now)
    }

    /// Ends the claims of what can't be sent soon, and takes what is to be stored now.
    mutating func takeUnstored(at now: ContinuousClock.Instant, _ time: WallTime) -> Unstored {
        giveBack(at: now, time)
        // After the end of its claim, a delivery is attempted again in any case.
        var unstored = Unstored(ended: ended.filter { $0.validUntil > now })
        held.settled(ended.count(where: \.wasSent) - unstored.ended.count(where: \.wasSent))
        ended = []
        if mustStoreHealth || isHealthUnstored && healthStoredAt.map({ now - $0 >= .seconds(1) }) ?? true {
            (isHealthUnstored, mustStoreHealth, healthStoredAt) = (false, false, now)
            health.persisted = circuit.persisted
            health.lastFailedAt = circuit.lastFailedAt
            unstored.health = health
            (health.lastReason, health.lastHTTPStatus, health.lastDetail) = (nil, nil, nil)
        }
        if isGone {
            unstored.disabling = .gone
        } else if !unstored.isEmpty, circuit.hasFailed(for: configuration.disableAfter, at: time) {
            unstored.disabling = .failing
        }
        return unstored
    }

    mutating func stored(_ unstored: Unstored) {
        held.settled(unstored.ended.count(where: \.wasSent))
        // An operator may resume the endpoint before this lane ends.
        if unstored.disabling == .gone { isGone = false }
    }

    mutating func storingFailed(_ unstored: Unstored) {
        ended += unstored.ended
        guard let earlier = unstored.health else { return }
        if health.lastReason == nil {
            (health.lastReason, health.lastHTTPStatus) = (earlier.lastReason, earlier.lastHTTPStatus)
            health.lastDetail = earlier.lastDetail
        }
        isHealthUnstored = true
        mustStoreHealth = true
    }

    /// What to claim now. Takes from the budget what the requests need.
    mutating func wantedClaim(at now: ContinuousClock.Instant, _ time: WallTime) -> Claim {
        if let due = retryDue, due <= now { retryDue = nil }
        mustClaimRetries = false
        guard earlierRequests < configuration.concurrency else { return .nothing }
        switch circuit.probeDue(at: time).last ?? circuit.standing {
        case .send(let all):
            let limit = max(0, all - earlierRequests)
            // One request needs no budget.
            if limit > borrowed + 1 { borrowed += budget.take(upTo: limit - borrowed - 1) }
            guard limit > 0 else { return .nothing }
            let capacity = min(held.capacity(below: min(limit, borrowed + 1), at: now), rate.available(at: now))
            let most = min(capacity, max(0, max(1, configuration.concurrency / 4) - held.retries))
            let retries = min(most, retryShare.most(of: capacity))
            return Claim(capacity: capacity, retries: retries, leavesRetries: retries < most, probe: nil)
        case .probe(let probe):
            return Claim(capacity: 1, retries: 1, leavesRetries: false, probe: probe)
        case .wait, .persist:
            return .nothing
        }
    }

    /// These deliveries were claimed, perhaps none; nil: that failed.
    ///
    /// - Parameter start: from before the claim.
    mutating func claimed(_ deliveries: [ClaimedDelivery]?, for claim: Claim, since start: ContinuousClock.Instant) {
        if let deliveries {
            held.claimed(deliveries, areProbes: claim.probe != nil, at: start)
            rate.used(deliveries.count)
            if claim.probe == nil, claim.capacity > 0 {
                let retries = deliveries.count(where: \.isRetry)
                retryShare.claimed(deliveries.count, retries: retries, of: claim.capacity)
                mustClaimRetries = claim.leavesRetries && deliveries.count < claim.capacity
            }
        }
        if claim.probe != nil, deliveries?.isEmpty ?? true { _ = circuit.probeMissed() }
        returnBudget()
    }

    /// The lane has ended, and with it its requests.
    mutating func closed() {
        budget.giveBack(borrowed)
        borrowed = 0
        isClosed = true
    }

    /// Decides about a delivery whose request has ended, and returns what is to be stored of it.
    ///
    /// - Parameter jitter: -1 to 1, for the next retry and the next probe.
    mutating func requestEnded(
        _ attempt: Attempt,
        at now: ContinuousClock.Instant,
        _ time: WallTime,
        jitter: (retry: Double, probe: Double)
    ) -> SettledDelivery {
        held.requestEnded(attempt.held)
        let outcome = attempt.isInterrupted ? .postponed : decide(attempt, at: now, time, jitter: jitter)
        let settled = SettledDelivery(
            position: attempt.held.delivery.change.position,
            claim: attempt.held.delivery.claim,
            outcome: outcome,
            failure: attempt.isInterrupted ? nil : attempt.outcome.reason.map { .init($0, attempt.answer.words) },
            httpStatus: attempt.isInterrupted ? nil : attempt.answer.status,
            startedAt: attempt.startedAt,
            duration: attempt.duration
        )
        ended.append(Ended(outcome: settled, validUntil: validUntil(attempt.held), wasSent: true))
        return settled
    }

    // MARK: - Private parts

    /// Changes circuit and health.
    private mutating func decide(
        _ attempt: Attempt,
        at now: ContinuousClock.Instant,
        _ time: WallTime,
        jitter: (retry: Double, probe: Double)
    ) -> SettledDelivery.Outcome {
        // While the circuit is open, the endpoint is the cause and not the change, so the attempt does not count.
        let counts = !circuit.isOpen
        let settled: SettledDelivery.Outcome
        let actions: [Circuit.Action]
        switch attempt.outcome {
        case .delivered:
            actions = circuit.attemptSucceeded(at: time)
            settled = .delivered
            health.lastSuccessAt = time
        case .aborted:
            actions = circuit.attemptAborted(at: time, jitter: jitter.probe)
            settled = .dead
        case .failed:
            let delivery = attempt.held.delivery
            actions = circuit.attemptFailed(change: delivery.change.position, at: time, jitter: jitter.probe)
            switch RetrySchedule(configuration.retries).decision(after: delivery.attempts, jitter: jitter.retry) {
            case .retry(let delay) where counts:
                settled = .retry(after: delay)
                // Counted in the database from when the outcome is stored.
                let due = now + delay + .milliseconds(20)
                retryDue = min(retryDue ?? due, due)
            case .dead where counts: settled = .dead
            case .retry, .dead: settled = .postponed
            }
        case .gone:
            actions = []
            settled = .postponed
            isGone = true
        case .throttled(let pause):
            actions = circuit.throttled(until: time + pause)
            settled = .postponed
        }
        if let reason = attempt.outcome.reason, attempt.outcome != .aborted {
            health.lastReason = reason.rawValue
            health.lastHTTPStatus = attempt.answer.status
            health.lastDetail = attempt.answer.words
        }
        isHealthUnstored = true
        mustStoreHealth = mustStoreHealth || actions.contains(.persist)
        return settled
    }

    /// Ends the claims of deliveries that can't be sent soon; they count as not attempted.
    private mutating func giveBack(at now: ContinuousClock.Instant, _ time: WallTime) {
        let removed = held.givenBack(isStopped: limit == 0, isFinished: isFinished, at: now)
        // Another one must be sent, or the circuit would wait for an outcome for ever.
        if removed.contains(where: \.isProbe) { _ = circuit.probeMissed() }
        if isFinished { returnBudget() }
        ended += removed.map { held in
            let outcome = SettledDelivery(
                position: held.delivery.change.position,
                claim: held.delivery.claim,
                outcome: .postponed,
                failure: nil,
                httpStatus: nil,
                startedAt: time,
                duration: .zero
            )
            return Ended(outcome: outcome, validUntil: validUntil(held), wasSent: false)
        }
    }

    private mutating func returnBudget() {
        let unused = borrowed - max(0, held.count - 1)
        guard unused > 0 else { return }
        borrowed -= unused
        budget.giveBack(unused)
    }

    private func validUntil(_ held: Held) -> ContinuousClock.Instant {
        held.claimedAt + configuration.timeout + DeliveryQueue.claimGrace
    }
}

extension EndpointState {
    /// The receiver asked for a pause after the last failure.
    fileprivate var isPause: Bool { lastReason == DeliveryReason.throttled.rawValue }

    var persisted: Circuit.Persisted {
        get { .init(failingSince: failingSince, openUntil: openUntil, probeDelay: probeDelay) }
        set { (failingSince, openUntil, probeDelay) = (newValue.failingSince, newValue.openUntil, newValue.probeDelay) }
    }
}
