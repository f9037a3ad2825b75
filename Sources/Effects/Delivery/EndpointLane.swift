import AccountStore
import Basics
import Postgres
import Synchronization
import Telemetry
import Terminal
import Webhooks

/// Delivers to one endpoint: claims, sends and settles, independently of the other endpoints.
///
/// One task claims and settles, in batches; others send what is claimed, each one request after another.
final class EndpointLane: Sendable {
    /// What the daemon has for all endpoints.
    struct Resources: Sendable {
        let pool: ConnectionPool
        let budget: RequestBudget
        let metrics: DeliveryMetrics
        let log: Log
        /// How long a shutdown waits for requests under way.
        let grace: Duration
    }

    private typealias Held = HeldDeliveries.Held

    private struct Attempt: Sendable {
        let held: Held
        let startedAt: WallTime
        let start: ContinuousClock.Instant

        var delivery: ClaimedDelivery { held.delivery }
    }

    /// An outcome that is not stored.
    private struct Ended: Sendable {
        let outcome: SettledDelivery
        /// The end of its claim.
        let validUntil: ContinuousClock.Instant
        /// False if it was claimed only.
        let wasSent: Bool
    }

    private struct State {
        var circuit: Circuit
        var rate: RequestRate
        var health: EndpointState
        /// True if the stored state differs.
        var isUnstored = false
        /// The state must be stored with the next statement, because the circuit changed.
        var mustStore = false
        var storedAt: ContinuousClock.Instant?
        var ended: [Ended] = []
        var held = HeldDeliveries(at: .now)
        /// Taken from the budget.
        var borrowed = 0
        /// When the next retry that was scheduled here is due.
        var retryDue: ContinuousClock.Instant?
        var isGone = false
        var finishedAt: ContinuousClock.Instant?
    }

    /// Until deliveries that other processes made due are looked for.
    private static let interval = Duration.seconds(1)
    /// What ends within this time is settled with one statement.
    static let pace = Duration.milliseconds(20)

    let endpoint: Endpoint
    private let signer: WebhookSigner
    private let transport: EndpointTransport
    private let resources: Resources
    /// Counts the requests by outcome.
    private let attempts: CounterFamily
    private let event = WakeupEvent()
    private let state: Mutex<State>

    init(
        _ endpoint: Endpoint,
        _ stored: EndpointState,
        signer: WebhookSigner,
        transport: EndpointTransport,
        resources: Resources
    ) {
        self.endpoint = endpoint
        self.signer = signer
        self.transport = transport
        self.resources = resources
        attempts = resources.metrics.attempts[endpoint.name]
        var circuit = Circuit(concurrency: endpoint.configuration.concurrency, stored.persisted)
        // What was before an operator resumed it does not count.
        let isResumed = stored.failingSince.map { endpoint.statusAt > $0 } ?? false
        let resumption = isResumed ? circuit.operatorResumed() : []
        // A daemon of an earlier version may have stored a failure that a success ended.
        let known = isResumed ? .init() : stored.persisted
        _ = circuit.learned(known, lastSuccessAt: stored.lastSuccessAt, at: .now())
        state = Mutex(
            State(
                circuit: circuit,
                rate: RequestRate(endpoint.configuration.rate, at: .now),
                health: stored,
                mustStore: resumption.contains(.persist)
            )
        )
    }

    /// True while only probes are sent.
    var isOpen: Bool { state.withLock { $0.circuit.isOpen } }

    /// Deliveries may be due.
    func wake() { event.signal() }

    /// Another daemon may have stored a newer state.
    func learned(_ stored: EndpointState) {
        state.withLock { state in
            guard !state.mustStore else { return }
            _ = state.circuit.learned(stored.persisted, lastSuccessAt: stored.lastSuccessAt, at: .now())
        }
    }

    /// Claims nothing more; ``run()`` returns when the requests under way have ended.
    func finish() {
        state.withLock { $0.finishedAt = $0.finishedAt ?? .now }
        event.signal()
    }

    func run() async {
        var pauses = Backoff()
        var isReported = false
        await withDiscardingTaskGroup { group in
            while true {
                if Task.isCancelled { finish() }
                let finishedAt = state.withLock { $0.finishedAt }
                var wait = Self.interval
                let start = ContinuousClock.now
                do throws(PostgresError) {
                    try await settleAndClaim(claiming: finishedAt == nil)
                    while let held = next() {
                        group.addTask(executorPreference: transport.executor) { await self.send(from: held) }
                    }
                    (pauses, isReported) = (Backoff(), false)
                    wait = pause
                } catch {
                    // The writer reports that PostgreSQL is away.
                    if !isReported, !error.isConnectionError {
                        let fields: KeyValuePairs = ["endpoint": endpoint.name, "error": "\(error)"]
                        resources.log.warning("deliveries can't be read or stored; trying again", fields)
                        isReported = true
                    }
                    wait = pauses.next()
                }
                if let finishedAt {
                    let (underWay, unsettled) = state.withLock { ($0.held.underWay, $0.ended.count) }
                    if underWay == 0, unsettled == 0 { break }
                    let time = ContinuousClock.now - finishedAt
                    // Cancelled requests give their claims back.
                    if time >= resources.grace || Task.isCancelled { group.cancelAll() }
                    // Without PostgreSQL, the claims end by themselves.
                    if time >= resources.grace * 2 { break }
                    wait = min(wait, .milliseconds(100))
                }
                await event.wait(atMost: wait)
                while !isUrgent, !Task.isCancelled, ContinuousClock.now < start + Self.pace {
                    await event.wait(atMost: start + Self.pace - .now)
                }
            }
        }
        await transport.close()
        let borrowed = state.withLock { $0.borrowed }
        resources.budget.giveBack(borrowed)
    }

    // MARK: - Database

    /// Stores what ended, and claims what may be sent, over one connection.
    private func settleAndClaim(claiming: Bool) async throws(PostgresError) {
        let (ended, health, isGone) = takeEnded()
        // Nothing that was claimed may be lost by a cancellation.
        let work = Task { () async -> Result<Void, PostgresError> in
            do throws(PostgresError) {
                if !ended.isEmpty || health != nil || isGone { try await store(ended, health, isGone: isGone) }
                if claiming, !isGone { try await claim() }
                return .success(())
            } catch {
                return .failure(error)
            }
        }
        try await work.value.get()
    }

    private func takeEnded() -> (ended: [Ended], health: EndpointState?, isGone: Bool) {
        state.withLock { state in
            giveBack(&state)
            // After the end of its claim, a delivery is attempted again in any case.
            let ended = state.ended.filter { $0.validUntil > .now }
            state.held.settled(state.ended.count(where: \.wasSent) - ended.count(where: \.wasSent))
            state.ended = []
            let isDue = state.mustStore || state.isUnstored && state.storedAt.map { .now - $0 >= .seconds(1) } ?? true
            guard isDue else { return (ended, nil, state.isGone) }
            state.isUnstored = false
            state.mustStore = false
            state.storedAt = .now
            state.health.persisted = state.circuit.persisted
            state.health.lastFailedAt = state.circuit.lastFailedAt
            return (ended, state.health, state.isGone)
        }
    }

    private func store(
        _ ended: [Ended],
        _ health: EndpointState?,
        isGone: Bool
    ) async throws(PostgresError) {
        let endpoint = endpoint
        let isFailing = state.withLock {
            $0.circuit.hasFailed(for: endpoint.configuration.disableAfter, at: .now())
        }
        do throws(PostgresError) {
            let disabled = try await resources.pool.withSession { session throws(PostgresError) in
                if !ended.isEmpty { try DeliveryQueue.settle(ended.map(\.outcome), of: endpoint.id, in: session) }
                if let health { try DeliveryQueue.store(health, of: endpoint, in: session) }
                if isGone { return try DeliveryQueue.disable(endpoint.id, .gone, in: session) }
                return isFailing ? try DeliveryQueue.disable(endpoint.id, .failing, in: session) : false
            }
            state.withLock { state in
                state.held.settled(ended.count(where: \.wasSent))
                // An operator may resume the endpoint before this lane ends.
                if isGone { state.isGone = false }
            }
            if disabled { reportDisabled(isGone ? .gone : .failing) }
        } catch {
            state.withLock { state in
                state.ended += ended
                state.isUnstored = state.isUnstored || health != nil
                state.mustStore = state.mustStore || health != nil
            }
            throw error
        }
    }

    private func claim() async throws(PostgresError) {
        let (capacity, retries, probe) = wanted()
        guard capacity > 0 else { return state.withLock { returnBudget(&$0) } }
        let endpoint = endpoint
        let start = ContinuousClock.now
        let claimed: [ClaimedDelivery]
        do throws(PostgresError) {
            claimed = try await resources.pool.withSession { session throws(PostgresError) in
                let first = try DeliveryQueue.claim(
                    of: endpoint.id,
                    capacity: capacity,
                    retries: retries,
                    probe: probe?.rawValue,
                    in: session
                )
                guard first.isEmpty, probe == .newest else { return first }
                let oldest = Circuit.Probe.oldest.rawValue
                return try DeliveryQueue.claim(of: endpoint.id, capacity: 1, retries: 1, probe: oldest, in: session)
            }
        } catch {
            claimFailed(probe: probe)
            throw error
        }
        state.withLock { state in
            state.held.claimed(claimed, areProbes: probe != nil, at: start)
            state.rate.used(claimed.count)
            returnBudget(&state)
        }
        if claimed.isEmpty { claimFailed(probe: probe) }
    }

    private func claimFailed(probe: Circuit.Probe?) {
        state.withLock { state in
            if probe != nil { _ = state.circuit.probeMissed() }
            returnBudget(&state)
        }
    }

    /// What to claim now.
    private func wanted() -> (capacity: Int, retries: Int, probe: Circuit.Probe?) {
        state.withLock { state in
            if let due = state.retryDue, due <= .now { state.retryDue = nil }
            switch state.circuit.probeDue(at: .now()).last ?? state.circuit.standing {
            case .send(let limit):
                // One request needs no budget.
                if limit > state.borrowed + 1 {
                    state.borrowed += resources.budget.take(upTo: limit - state.borrowed - 1)
                }
                guard limit > 0 else { return (0, 0, nil) }
                let capacity = state.held.capacity(below: min(limit, state.borrowed + 1), at: .now)
                let retries = max(1, endpoint.configuration.concurrency / 4) - state.held.retries
                return (min(capacity, state.rate.available(at: .now)), max(0, retries), nil)
            case .probe(let probe):
                return (1, 1, probe)
            case .wait, .persist:
                return (0, 0, nil)
            }
        }
    }

    private func returnBudget(_ state: inout State) {
        let unused = state.borrowed - max(0, state.held.count - 1)
        guard unused > 0 else { return }
        state.borrowed -= unused
        resources.budget.giveBack(unused)
    }

    /// How long nothing can be due that this lane knows of.
    private var pause: Duration {
        state.withLock { state in
            var pause = Self.interval
            // A time in the past: nothing waits that could be sent as the probe.
            if case .wait(let until) = state.circuit.standing, until > .now() {
                pause = min(pause, max(.milliseconds(1), until.duration(since: .now())))
            }
            if let due = state.retryDue { pause = min(pause, max(.milliseconds(1), due - .now)) }
            if state.rate.pause > .zero { pause = min(pause, state.rate.pause) }
            return pause
        }
    }

    // MARK: - Requests

    /// True if a statement now lets requests be sent that otherwise wait for the end of the pace.
    private var isUrgent: Bool { state.withLock { isUrgent($0) } }

    private func isUrgent(_ state: State) -> Bool {
        state.held.count == 0 || state.held.areBlocked(below: limit(state)) || state.mustStore
            || state.finishedAt != nil
    }

    /// The next delivery to send now; nil if there is none, or if the circuit allows no further request.
    private func next() -> Held? {
        state.withLock { $0.held.next(below: limit($0), at: .now) }
    }

    /// The requests that may be under way, apart from a probe.
    private func limit(_ state: State) -> Int {
        guard state.finishedAt == nil, !state.isGone, case .send(let limit) = state.circuit.standing else { return 0 }
        return min(limit, state.borrowed + 1)
    }

    /// Ends the claims of deliveries that can't be sent soon; they count as not attempted.
    private func giveBack(_ state: inout State) {
        let removed = state.held.givenBack(
            isStopped: limit(state) == 0,
            isFinished: state.finishedAt != nil || state.isGone,
            at: .now
        )
        // Another one must be sent, or the circuit would wait for an outcome for ever.
        if removed.contains(where: \.isProbe) { _ = state.circuit.probeMissed() }
        state.ended += removed.map { held in
            let outcome = SettledDelivery(
                position: held.delivery.change.position,
                claim: held.delivery.claim,
                outcome: .postponed,
                failure: nil,
                httpStatus: nil,
                startedAt: .now(),
                duration: .zero
            )
            return Ended(outcome: outcome, validUntil: validUntil(held), wasSent: false)
        }
    }

    /// Sends one delivery after another until none waits that may be sent.
    private func send(from first: Held) async {
        var current: Held? = first
        while let held = current {
            await attempt(held)
            current = next()
        }
    }

    private func attempt(_ held: Held) async {
        let delivery = held.delivery
        let event = ChangeEvent(delivery.change, email: delivery.email)
        let body = Array(JSONText.object(event.members).line.utf8)
        let attempt = Attempt(held: held, startedAt: .now(), start: .now)
        let answer: EndpointAnswer
        do throws(WebhookError) {
            let signature = try signer.headers(messageID: event.id, at: attempt.startedAt, body: body)
            let headers = [("Content-Type", "application/json")] + signature
            let timeout = endpoint.configuration.timeout
            answer = await transport.post(EndpointRequest(body: body, headers: headers, timeout: timeout))
        } catch {
            answer = .unanswered(.blocked, error.message)
        }
        ended(attempt, answer)
    }

    private func validUntil(_ held: Held) -> ContinuousClock.Instant {
        held.claimedAt + endpoint.configuration.timeout + DeliveryQueue.claimGrace
    }

    private func ended(_ attempt: Attempt, _ answer: EndpointAnswer) {
        let now = WallTime.now()
        let duration = ContinuousClock.now - attempt.start
        let outcome = AttemptOutcome(answer, now: now)
        // A request that the shutdown interrupted is no attempt.
        let isInterrupted = Task.isCancelled && outcome != .delivered
        // Before it can be stored, so that no reader of the database finds the metrics behind.
        if !isInterrupted {
            attempts.increment(outcome.reason?.rawValue ?? "delivered")
            resources.metrics.duration.record(duration)
            if outcome == .delivered {
                resources.metrics.delay.record(now.duration(since: attempt.delivery.change.recordedAt))
            }
        }
        let (change, before, after) = state.withLock { state in
            let before = state.circuit.isOpen
            state.held.requestEnded(attempt.held)
            let settled = isInterrupted ? .postponed : apply(outcome, answer, attempt, now: now, to: &state)
            let change = SettledDelivery(
                position: attempt.delivery.change.position,
                claim: attempt.delivery.claim,
                outcome: settled,
                failure: isInterrupted ? nil : outcome.reason.map { .init($0, answer.words) },
                httpStatus: isInterrupted ? nil : answer.status,
                startedAt: attempt.startedAt,
                duration: duration
            )
            state.ended.append(Ended(outcome: change, validUntil: validUntil(attempt.held), wasSent: true))
            // The first one starts the pace.
            if state.ended.count == 1 || isUrgent(state) { event.signal() }
            return (change, before, state.circuit.isOpen)
        }
        if !isInterrupted, before != after { reportCircuit(isOpen: after, change.failure) }
    }

    /// Changes circuit and health, and decides about the delivery.
    private func apply(
        _ outcome: AttemptOutcome,
        _ answer: EndpointAnswer,
        _ attempt: Attempt,
        now: WallTime,
        to state: inout State
    ) -> SettledDelivery.Outcome {
        let jitter = Double.random(in: -1...1)
        // While the circuit is open, the endpoint is the cause and not the change, so the attempt does not count.
        let counts = !state.circuit.isOpen
        let settled: SettledDelivery.Outcome
        let actions: [Circuit.Action]
        switch outcome {
        case .delivered:
            actions = state.circuit.attemptSucceeded()
            settled = .delivered
            state.health.lastSuccessAt = now
        case .aborted:
            actions = state.circuit.attemptAborted(at: now, jitter: jitter)
            settled = .dead
        case .failed:
            let position = attempt.delivery.change.position
            actions = state.circuit.attemptFailed(change: position, at: now, jitter: jitter)
            let schedule = RetrySchedule(endpoint.configuration.retries)
            switch schedule.decision(after: attempt.delivery.attempts, jitter: Double.random(in: -1...1)) {
            case .retry(let delay) where counts:
                settled = .retry(after: delay)
                // Counted in the database from when the outcome is stored.
                let due = ContinuousClock.now + delay + .milliseconds(20)
                state.retryDue = min(state.retryDue ?? due, due)
            case .dead where counts: settled = .dead
            case .retry, .dead: settled = .postponed
            }
        case .gone:
            actions = []
            settled = .postponed
            state.isGone = true
        case .throttled(let pause):
            actions = state.circuit.throttled(until: now + pause)
            settled = .postponed
        }
        if let reason = outcome.reason, outcome != .aborted {
            state.health.lastReason = reason.rawValue
            state.health.lastHTTPStatus = answer.status
            state.health.lastDetail = answer.words
        }
        state.isUnstored = true
        state.mustStore = state.mustStore || actions.contains(.persist)
        return settled
    }

    // MARK: - Log

    private func reportCircuit(isOpen: Bool, _ failure: SettledDelivery.Failure?) {
        let name = endpoint.name
        guard isOpen else { return resources.log.notice("endpoint works again", ["endpoint": name]) }
        let reason = failure.map { "\($0.reason.rawValue): \($0.words)" } ?? ""
        resources.log.warning("endpoint fails: its deliveries wait", ["endpoint": name, "reason": reason])
    }

    private func reportDisabled(_ reason: Endpoint.StatusReason) {
        let step = "siwad endpoints resume \(endpoint.name) --note '…' continues with the first change that waits"
        let fields: KeyValuePairs = ["endpoint": endpoint.name, "reason": reason.rawValue, "next": step]
        resources.log.error("endpoint disabled: its deliveries wait", fields)
    }
}

extension EndpointState {
    var persisted: Circuit.Persisted {
        get { .init(failingSince: failingSince, openUntil: openUntil, probeDelay: probeDelay) }
        set { (failingSince, openUntil, probeDelay) = (newValue.failingSince, newValue.openUntil, newValue.probeDelay) }
    }
}
