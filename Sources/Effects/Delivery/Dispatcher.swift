package import AccountStore
package import Basics
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

    /// Until endpoints are read again.
    private static let interval = Duration.seconds(1)
    /// Between two measurements of what waits.
    private static let measurement = Duration.seconds(10)

    private let resources: EndpointLane.Resources
    /// Signalled after each publication of this daemon.
    private let published: WakeupEvent
    private let connections: Mutex<(current: Connections, generation: Int)>
    private let isFinished = Atomic(false)

    /// - Parameters:
    ///   - concurrency: the requests at the same time to all endpoints, in addition to the one that each always has.
    ///   - grace: how long a shutdown waits for requests under way.
    package init(
        pool: ConnectionPool,
        connections: Connections,
        published: WakeupEvent,
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
        self.published = published
        self.connections = Mutex((connections, 0))
    }

    /// Replaces the connections to all endpoints. Requests under way end on the old ones.
    package func replace(_ new: Connections) {
        connections.withLock { $0 = (new, $0.generation + 1) }
        published.signal()
    }

    /// Delivers until ``finish()``, and then waits for the requests under way.
    package func run() async {
        await withDiscardingTaskGroup { group in
            var lanes: [Int32: Running] = [:]
            /// Endpoints without a lane, and why, so that each cause is reported once.
            var broken: [Int32: String] = [:]
            var readAt: ContinuousClock.Instant?
            var measuredAt: ContinuousClock.Instant?
            while !isFinished.load(ordering: .acquiring), !Task.isCancelled {
                if readAt.map({ .now - $0 >= Self.interval }) ?? true {
                    readAt = .now
                    // The lanes report what is wrong with the database.
                    if let found = try? await read() {
                        update(&lanes, &broken, found) { lane in group.addTask { await lane.run() } }
                        if measuredAt.map({ .now - $0 >= Self.measurement }) ?? true {
                            measuredAt = .now
                            await measure()
                        }
                    }
                }
                for running in lanes.values { running.lane.wake() }
                await published.wait(atMost: Self.interval)
            }
            for running in lanes.values { running.lane.finish() }
        }
    }

    package func finish() {
        isFinished.store(true, ordering: .releasing)
        published.signal()
    }

    // MARK: - Private parts

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
        _ lanes: inout [Int32: Running],
        _ broken: inout [Int32: String],
        _ found: [Found],
        start: (EndpointLane) -> Void
    ) {
        let (connections, generation) = connections.withLock { $0 }
        // Before a lane counts anything.
        resources.metrics.keep(found.map(\.endpoint.name))
        let delivered = found.filter { $0.endpoint.status == .enabled && $0.endpoint.configuration.kind == .webhook }
        let known = Dictionary(uniqueKeysWithValues: delivered.map { ($0.endpoint.id, $0) })
        for (id, running) in lanes {
            let isCurrent = known[id].map {
                $0.endpoint == running.lane.endpoint && $0.secrets == running.secrets
                    && running.generation == generation
            }
            guard isCurrent != true else { continue }
            running.lane.finish()
            lanes[id] = nil
        }
        broken = broken.filter { known[$0.key] != nil }
        for entry in delivered {
            let id = entry.endpoint.id
            if let running = lanes[id] {
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
                    resources: resources
                )
                lanes[id] = Running(lane: lane, secrets: entry.secrets, generation: generation)
                broken[id] = nil
                start(lane)
            } catch {
                let cause = "\(error)"
                guard broken[id] != cause else { continue }
                broken[id] = cause
                let fields: KeyValuePairs = ["endpoint": entry.endpoint.name, "error": cause]
                resources.log.error("nothing can be sent to an endpoint; its deliveries wait", fields)
            }
        }
        resources.metrics.show(
            found.map { ($0.endpoint, isOpen: lanes[$0.endpoint.id]?.lane.isOpen ?? false) }
        )
    }

    private func measure() async {
        // Measured again later.
        let backlogs = try? await resources.pool.withSession { session throws(PostgresError) in
            try DeliveryQueue.backlogs(in: session)
        }
        for backlog in backlogs ?? [] { resources.metrics.show(backlog) }
    }
}
