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

    /// What ends within this time is settled with one statement.
    static let pace = Duration.milliseconds(20)
    /// What PostgreSQL may take once the grace of a shutdown is over.
    private static let lastChance = Duration.seconds(1)

    let endpoint: Endpoint
    private let signer: WebhookSigner
    private let transport: EndpointTransport
    private let resources: Resources
    /// Counts the requests by outcome.
    private let attempts: CounterFamily
    private let event = WakeupEvent()
    private let state: Mutex<LaneState>
    /// The lane that delivered to the endpoint before it was changed, until it has ended.
    private let predecessor: Mutex<EndpointLane?>

    init(
        _ endpoint: Endpoint,
        _ stored: EndpointState,
        signer: WebhookSigner,
        transport: EndpointTransport,
        resources: Resources,
        after predecessor: EndpointLane?
    ) {
        self.endpoint = endpoint
        self.signer = signer
        self.transport = transport
        self.resources = resources
        attempts = resources.metrics.attempts[endpoint.name]
        state = Mutex(LaneState(endpoint, stored, budget: resources.budget, at: .now, .now()))
        self.predecessor = Mutex(predecessor)
    }

    /// The requests under way to the endpoint, from this lane and the lanes before it.
    var requestsUnderWay: Int { state.withLock(\.held.underWay) + earlierRequests }

    /// The requests under way from the lanes before this one, which are finished, so the number only falls.
    private var earlierRequests: Int {
        predecessor.withLock { lane in
            if lane?.hasEnded == true { lane = nil }
            return lane?.requestsUnderWay ?? 0
        }
    }

    /// True once this lane and the ones before it have nothing under way or to store.
    var hasEnded: Bool {
        let earlier = predecessor.withLock { $0 }
        return state.withLock(\.isClosed) && earlier?.hasEnded ?? true
    }

    /// True while only probes are sent.
    var isOpen: Bool { state.withLock { $0.circuit.isOpen } }

    /// Deliveries may be due.
    func wake() { event.signal() }

    /// Another daemon may have stored a newer state.
    func learned(_ stored: EndpointState) {
        state.withLock { $0.learned(stored, at: .now()) }
    }

    /// Claims nothing more; ``run()`` returns when the requests under way have ended. Each ends within its timeout: if it were
    /// interrupted, it would be repeated, although the receiver may have handled it.
    func retire() { finish(within: endpoint.configuration.timeout + DeliveryQueue.claimGrace / 2) }

    /// Claims nothing more, and interrupts requests after the grace of a shutdown, also in the lanes before this one.
    func shutDown() {
        finish(within: resources.grace)
        let earlier = predecessor.withLock { $0 }
        earlier?.shutDown()
    }

    private func finish(within grace: Duration) {
        state.withLock { $0.finished(at: .now, within: grace) }
        event.signal()
    }

    func run() async {
        var pauses = Backoff()
        var isReported = false
        await withDiscardingTaskGroup { group in
            while true {
                // The grace of the shutdown is over.
                if Task.isCancelled { state.withLock { $0.finished(at: .now, within: .zero) } }
                let deadline = state.withLock { $0.deadline }
                var wait: Duration
                let start = ContinuousClock.now
                let earlier = earlierRequests
                state.withLock { $0.counted(earlierRequests: earlier) }
                do throws(PostgresError) {
                    try await settleAndClaim(claiming: deadline == nil)
                    while let held = next() {
                        group.addTask(executorPreference: transport.executor) { await self.send(from: held) }
                    }
                    (pauses, isReported) = (Backoff(), false)
                    wait = state.withLock { $0.pause(at: .now, .now()) }
                } catch {
                    // The writer reports that PostgreSQL is away.
                    if !isReported, !error.isServerAway {
                        let fields: KeyValuePairs = ["endpoint": endpoint.name, "error": "\(error)"]
                        resources.log.warning("deliveries can't be read or stored; trying again", fields)
                        isReported = true
                    }
                    wait = pauses.next()
                }
                if let deadline {
                    let (underWay, unsettled) = state.withLock { ($0.held.underWay, $0.ended.count) }
                    if underWay == 0, unsettled == 0 { break }
                    let now = ContinuousClock.now
                    // Cancelled requests give their claims back.
                    if now >= deadline { group.cancelAll() }
                    // Without PostgreSQL, the claims end by themselves.
                    if now >= deadline + (Task.isCancelled ? Self.lastChance : resources.grace) { break }
                    wait = min(wait, .milliseconds(100))
                }
                await pause(atMost: wait)
                while !isUrgent, !Task.isCancelled, ContinuousClock.now < start + Self.pace {
                    await event.wait(atMost: start + Self.pace - .now)
                }
            }
        }
        await transport.close()
        state.withLock { $0.closed() }
    }

    private func pause(atMost wait: Duration) async {
        guard Task.isCancelled else { return await event.wait(atMost: wait) }
        // A cancelled task would not wait.
        await Task { await event.wait(atMost: wait) }.value
    }

    // MARK: - Database

    /// Stores what ended, and claims what may be sent, over one connection.
    private func settleAndClaim(claiming: Bool) async throws(PostgresError) {
        let unstored = state.withLock { $0.takeUnstored(at: .now, .now()) }
        // Nothing that was claimed may be lost by a cancellation, unless PostgreSQL hangs.
        let work = Task { () async -> Result<Void, PostgresError> in
            do throws(PostgresError) {
                if !unstored.isEmpty { try await store(unstored) }
                if claiming, unstored.disabling != .gone { try await claim() }
                return .success(())
            } catch {
                return .failure(error)
            }
        }
        let result = await withTaskCancellationHandler {
            await work.value
        } onCancel: {
            // Not awaited: without an effect if the work has ended.
            Task {
                try? await Task.sleep(for: Self.lastChance)
                work.cancel()
            }
        }
        try result.get()
    }

    private func store(_ unstored: LaneState.Unstored) async throws(PostgresError) {
        let endpoint = endpoint
        do throws(PostgresError) {
            let isDisabled = try await resources.pool.withSession { session throws(PostgresError) in
                let outcomes = unstored.outcomes
                if !outcomes.isEmpty { try DeliveryQueue.settle(outcomes, of: endpoint.id, in: session) }
                if let health = unstored.health { try DeliveryQueue.store(health, of: endpoint, in: session) }
                guard let reason = unstored.disabling else { return false }
                return try DeliveryQueue.disable(endpoint, reason, in: session)
            }
            state.withLock { $0.stored(unstored) }
            if isDisabled, let reason = unstored.disabling { reportDisabled(reason) }
        } catch {
            state.withLock { $0.storingFailed(unstored) }
            throw error
        }
    }

    private func claim() async throws(PostgresError) {
        let start = ContinuousClock.now
        let claim = state.withLock { $0.wantedClaim(at: start, .now()) }
        var claimed: [ClaimedDelivery]? = claim.capacity > 0 ? nil : []
        defer { state.withLock { [claimed] in $0.claimed(claimed, for: claim, since: start) } }
        guard claim.capacity > 0 else { return }
        let endpoint = endpoint
        claimed = try await resources.pool.withSession { session throws(PostgresError) in
            let first = try DeliveryQueue.claim(
                of: endpoint.id,
                capacity: claim.capacity,
                retries: claim.retries,
                probe: claim.probe?.rawValue,
                in: session
            )
            guard first.isEmpty, claim.probe == .newest else { return first }
            let oldest = Circuit.Probe.oldest.rawValue
            return try DeliveryQueue.claim(of: endpoint.id, capacity: 1, retries: 1, probe: oldest, in: session)
        }
    }

    // MARK: - Requests

    private var isUrgent: Bool { state.withLock { $0.isUrgent } }

    private func next() -> Held? { state.withLock { $0.next(at: .now) } }

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
        let (startedAt, start) = (WallTime.now(), ContinuousClock.now)
        let answer: EndpointAnswer
        do throws(WebhookError) {
            let signature = try signer.headers(messageID: event.id, at: startedAt, body: body)
            let headers = [("Content-Type", "application/json")] + signature
            let timeout = endpoint.configuration.timeout
            answer = await transport.post(EndpointRequest(body: body, headers: headers, timeout: timeout))
        } catch {
            answer = .unanswered(.blocked, error.message)
        }
        let outcome = AttemptOutcome(answer, now: .now())
        ended(
            LaneState.Attempt(
                held: held,
                outcome: outcome,
                answer: answer,
                startedAt: startedAt,
                duration: .now - start,
                isInterrupted: Task.isCancelled && outcome != .delivered
            )
        )
    }

    private func ended(_ attempt: LaneState.Attempt) {
        let now = WallTime.now()
        // Before it can be stored, so that no reader of the database finds the metrics behind.
        if !attempt.isInterrupted {
            attempts.increment(attempt.outcome.reason?.rawValue ?? "delivered")
            resources.metrics.duration.record(attempt.duration)
            if attempt.outcome == .delivered {
                resources.metrics.delay.record(now.duration(since: attempt.held.delivery.change.recordedAt))
            }
        }
        let jitter = (retry: Double.random(in: -1...1), probe: Double.random(in: -1...1))
        let (settled, before, after) = state.withLock { state in
            let before = state.circuit.isOpen
            let settled = state.requestEnded(attempt, at: .now, now, jitter: jitter)
            // The first one starts the pace.
            if state.ended.count == 1 || state.isUrgent { event.signal() }
            return (settled, before, state.circuit.isOpen)
        }
        if !attempt.isInterrupted, before != after { reportCircuit(isOpen: after, settled.failure) }
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
