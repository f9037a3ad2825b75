package import AccountStore
import Basics
package import JOSE
package import Postgres
import Synchronization
package import Telemetry
import Webhooks

/// Delivers published changes to the endpoints of applications.
///
/// Any number of daemons deliver at the same time. Each claims deliveries in the database, so none is attempted by two.
package final class Dispatcher: Sendable {
    /// Settings that a reload replaces.
    package struct Connections: Sendable {
        /// Makes the transport of an endpoint.
        let connect: @Sendable (Endpoint) throws -> EndpointTransport
        let keys: SealingKeys?

        package init(keys: SealingKeys?, connect: @escaping @Sendable (Endpoint) throws -> EndpointTransport) {
            self.keys = keys
            self.connect = connect
        }
    }

    /// A lane and what it was made from.
    private struct Running {
        let lane: EndpointLane
        let secrets: [SealedEndpointSecret]
        let generation: Int
    }

    private struct Found: Sendable {
        let endpoint: Endpoint
        let state: EndpointState
        let secrets: [SealedEndpointSecret]
    }

    private struct State {
        var lanes: [Int32: Running] = [:]
        /// The last lane of each endpoint that was changed or paused, until it has ended.
        var finished: [Int32: EndpointLane] = [:]
        /// Endpoints without a lane, and why, so that each cause is reported once.
        var broken: [Int32: String] = [:]
        /// Cancelled while there is no endpoint, and awaited at the end.
        var listening: Task<Void, Never>?
        /// True if the log says that endpoints can't be read.
        var isReported = false
        /// True if the log says that the backlogs can't be measured.
        var isUnmeasured = false
        var readAt: ContinuousClock.Instant?
        var measuredAt: ContinuousClock.Instant?
    }

    /// Until endpoints are read again.
    private static let interval = Duration.seconds(1)
    /// Between two measurements of what waits.
    private static let measurement = Duration.seconds(10)
    /// The most that a daemon waits after a notification.
    private static let spread = Duration.milliseconds(25)

    private let resources: EndpointLane.Resources
    private let publisher: Publisher
    /// Listens to other processes; nil: only reading every second finds what they did.
    private let listener: ConnectionPool?
    /// Deliveries may be due, or endpoints may have changed.
    private let event: WakeupEvent
    /// Endpoints are read with the next wakeup.
    private let mustRead = Atomic(false)
    private let connections: Mutex<(current: Connections, generation: Int)>
    private let isFinished = Atomic(false)

    /// - Parameters:
    ///   - listener: has one connection, which its other callers get whenever they want it.
    ///   - concurrency: the requests at the same time to all endpoints, in addition to the one that each always has.
    ///   - grace: how long a shutdown waits for requests under way.
    package init(
        pool: ConnectionPool,
        listener: ConnectionPool?,
        publisher: Publisher,
        connections: Connections,
        concurrency: Int,
        grace: Duration,
        metrics: DeliveryMetrics,
        log: Log
    ) {
        resources = .init(
            pool: pool,
            budget: RequestBudget(concurrency),
            metrics: metrics,
            log: log,
            grace: grace
        )
        self.listener = listener
        self.publisher = publisher
        event = publisher.published
        self.connections = Mutex((connections, 0))
    }

    /// Replaces the connections to all endpoints. Requests under way end on the old ones.
    package func replace(_ new: Connections) {
        connections.withLock { $0 = (new, $0.generation + 1) }
        event.signal()
    }

    /// Delivers until ``finish()``, and then waits for the requests under way.
    package func run() async {
        await withDiscardingTaskGroup { group in
            var state = State()
            while !isFinished.load(ordering: .acquiring), !Task.isCancelled {
                let isDue = state.readAt.map { .now - $0 >= Self.interval } ?? true
                if mustRead.exchange(false, ordering: .acquiringAndReleasing) || isDue {
                    await refresh(&state) { lane in group.addTask { await lane.run() } }
                }
                for running in state.lanes.values { running.lane.wake() }
                await event.wait(atMost: Self.interval)
            }
            for running in state.lanes.values { running.lane.shutDown() }
            for lane in state.finished.values { lane.shutDown() }
            state.listening?.cancel()
            await state.listening?.value
        }
    }

    package func finish() {
        isFinished.store(true, ordering: .releasing)
        event.signal()
    }

    // MARK: - Private parts

    /// Reads the endpoints, and makes lanes and listener match them.
    private func refresh(_ state: inout State, start: (EndpointLane) -> Void) async {
        state.readAt = .now
        do throws(PostgresError) {
            let found = try await read()
            state.isReported = false
            update(&state, found, start: start)
            if found.isEmpty {
                state.listening?.cancel()
                state.listening = nil
            } else if state.listening == nil {
                state.listening = listener.map { pool in Task { await listen(over: pool) } }
            }
            guard state.measuredAt.map({ .now - $0 >= Self.measurement }) ?? true else { return }
            state.measuredAt = .now
            do throws(PostgresError) {
                try await measure()
                state.isUnmeasured = false
            } catch {
                report(error, "the backlogs of endpoints can't be measured; trying again", unless: &state.isUnmeasured)
            }
        } catch {
            report(error, "endpoints can't be read; trying again", unless: &state.isReported)
        }
    }

    private func report(_ error: PostgresError, _ message: String, unless isReported: inout Bool) {
        // The writer reports that PostgreSQL is away.
        guard !isReported, !error.isServerAway, error.code != .cancelled else { return }
        resources.log.warning(message, ["error": "\(error)"])
        isReported = true
    }

    /// Wakes the dispatcher when another process publishes changes, or changes endpoints or deliveries.
    private func listen(over pool: ConnectionPool) async {
        var pauses = Backoff()
        while !Task.isCancelled {
            do throws(PostgresError) {
                let channels = [Publication.channel, Endpoints.channel]
                let notifications = try await pool.waitForNotifications(of: channels, atMost: .seconds(60))
                pauses = Backoff()
                guard !notifications.isEmpty else { continue }
                // Not all daemons claim at the same moment: the first ones leave little to the others. A cancelled sleep ends
                // the loop.
                try? await Task.sleep(for: Self.spread * Double.random(in: 0...1))
                guard notifications.contains(where: isNews) else { continue }
                if notifications.contains(where: { $0.channel == Endpoints.channel }) {
                    mustRead.store(true, ordering: .releasing)
                }
                event.signal()
            } catch {
                // The writer reports that PostgreSQL is away. A cancelled sleep ends the loop.
                try? await Task.sleep(for: pauses.next())
            }
        }
        // Closes the connection: one that listens and is not read would keep the notifications. That must not be cancelled, and
        // fails only without a connection.
        await Task { _ = try? await pool.withConnection { _ in } }.value
    }

    /// False for the publications of this daemon, after which its dispatcher was woken already.
    private func isNews(_ notification: PostgresNotification) -> Bool {
        guard notification.channel == Publication.channel else { return true }
        // What this siwad can't read may be news.
        let last = (try? JSONValue(parsing: Array(notification.payload.utf8)))?["last"]?.integer
        return last.map { !publisher.hasPublished($0) } ?? true
    }

    private func read() async throws(PostgresError) -> [Found] {
        try await resources.pool.withSession { session throws(PostgresError) in
            try Endpoints.all(in: session).map { endpoint, state throws(PostgresError) in
                let isDelivered = endpoint.status == .enabled && endpoint.configuration.kind == .webhook
                let secrets = isDelivered ? try EndpointSecrets.live(of: endpoint.id, in: session) : []
                return Found(endpoint: endpoint, state: state, secrets: secrets)
            }
        }
    }

    /// Starts and ends lanes, so that they match the table.
    private func update(
        _ state: inout State,
        _ found: [Found],
        start: (EndpointLane) -> Void
    ) {
        let (connections, generation) = connections.withLock { $0 }
        // Before a lane counts anything.
        resources.metrics.keep(found.map(\.endpoint.name))
        let delivered = found.filter { $0.endpoint.status == .enabled && $0.endpoint.configuration.kind == .webhook }
        let known = Dictionary(uniqueKeysWithValues: delivered.map { ($0.endpoint.id, $0) })
        state.finished = state.finished.filter { !$0.value.hasEnded }
        for (id, running) in state.lanes {
            let isCurrent = known[id].map {
                $0.endpoint == running.lane.endpoint && $0.secrets == running.secrets
                    && running.generation == generation
            }
            guard isCurrent != true else { continue }
            running.lane.retire()
            state.lanes[id] = nil
            state.finished[id] = running.lane
        }
        state.broken = state.broken.filter { known[$0.key] != nil }
        for entry in delivered {
            let id = entry.endpoint.id
            if let running = state.lanes[id] {
                running.lane.learned(entry.state)
                continue
            }
            do {
                let signer = try WebhookSigner(entry.endpoint, entry.secrets, keys: connections.keys)
                let transport = try connections.connect(entry.endpoint)
                let lane = EndpointLane(
                    entry.endpoint,
                    entry.state,
                    signer: signer,
                    transport: transport,
                    resources: resources,
                    after: state.finished.removeValue(forKey: id)
                )
                state.lanes[id] = Running(lane: lane, secrets: entry.secrets, generation: generation)
                state.broken[id] = nil
                start(lane)
            } catch {
                let cause = "\(error)"
                guard state.broken[id] != cause else { continue }
                state.broken[id] = cause
                let fields: KeyValuePairs = ["endpoint": entry.endpoint.name, "error": cause]
                resources.log.error("nothing can be sent to an endpoint; its deliveries wait", fields)
            }
        }
        resources.metrics.show(
            found.map {
                ($0.endpoint, isOpen: state.lanes[$0.endpoint.id]?.lane.isOpen ?? (state.broken[$0.endpoint.id] != nil))
            }
        )
    }

    private func measure() async throws(PostgresError) {
        let backlogs = try await resources.pool.withSession { session throws(PostgresError) in
            try DeliveryQueue.backlogs(in: session)
        }
        for backlog in backlogs { resources.metrics.show(backlog) }
    }
}
