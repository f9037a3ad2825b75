import AccountStore
import AppleTokens
import Basics
import Ingest
import Listening
import NotificationServer
import ServiceLifecycle
import Telemetry
import TestSupport

/// The daemon's endpoint in this process with another clock, since the daemon's clock can't be set.
struct EndpointInProcess {
    private struct Part: Service {
        let work: @Sendable () async throws -> Void
        func run() async throws { try await work() }
    }

    /// They end with the process.
    private static let eventLoops = EventLoops.start(count: 1)

    let url: String

    /// Runs `body` with an endpoint at the time `now`, for one app and one key set.
    static func with(
        _ database: TestDatabase,
        app: String,
        keySet: String,
        now: WallTime,
        _ body: (EndpointInProcess) async throws -> Void
    ) async throws {
        let log = Log(label: "test", level: .critical, format: .text) { _ in }
        let metrics = SiwadMetrics(version: "test", appIDs: [app])
        let source = KeyRing.Source(fetch: { Array(keySet.utf8) }, persisted: { .none }, persist: { _, _ in })
        let keys = KeyRing(refresh: .seconds(3600), floor: .seconds(60), source: source, metrics: metrics, log: log)
        let intake = IngestService(
            policy: NotificationPolicy(audiences: try AudienceMap(parsing: "AAAAAAAAAA/\(app)")),
            keys: keys,
            metrics: metrics,
            log: log,
            now: { now }
        )
        let trust = SigningKeys.Trust(url: "https://appleid.apple.com/auth/keys", maximumAge: .seconds(86_400))
        let writer = NotificationWriter(service: intake, settings: database.settings, trust: trust)
        let (ports, running) = AsyncStream.makeStream(of: Int.self)
        let server = NotificationServer(
            address: ListenAddress(host: "127.0.0.1", port: 0),
            path: "/apple/notifications",
            metrics: metrics,
            eventLoops: eventLoops,
            log: log,
            onRunning: { running.yield($0) }
        ) { deliver in
            let lane = Receiver(service: intake, deliver: deliver)
            return { body, ticket in lane.receive(body, ticket: ticket) }
        }
        let services = ServiceGroup(
            configuration: ServiceGroupConfiguration(services: [Part(work: server.run)], logger: log.logger)
        )
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { await keys.run() }
            group.addTask { await writer.run() }
            group.addTask { try await services.run() }
            let result: Result<Void, any Error>
            do {
                var iterator = ports.makeAsyncIterator()
                guard let port = await iterator.next() else { throw TooLate("the server's port") }
                try await eventually("keys and connection") { !keys.keys.isEmpty && intake.isStoring }
                result = .success(
                    try await body(EndpointInProcess(url: "http://127.0.0.1:\(port)/apple/notifications"))
                )
            } catch {
                result = .failure(error)
            }
            await services.triggerGracefulShutdown()
            writer.finish()
            keys.stop()
            try await group.waitForAll()
            try result.get()
        }
    }
}
