import Ingest
import Listening
import Logging
import NIOCore
import NIOSSL
import NotificationServer
import ServiceLifecycle
import Telemetry
import TestSupport

/// A notification server on its own port for the duration of a test.
struct TestServer {
    static let path = "/apple/notifications"

    /// A single event loop for all servers and clients, so that limits by event loop are exact.
    static let eventLoops = EventLoops.start(count: 1)

    static let log = Log(label: "test", level: .critical, format: .text) { _ in }

    let port: Int
    let metrics: SiwadMetrics
    let ingest: StubIngest
    /// Begins a graceful shutdown.
    let beginShutdown: @Sendable () async -> Void

    func connect(tls: NIOSSLContext? = nil) async throws -> RawClient {
        try await RawClient.connect(to: port, on: Self.eventLoops.group, tls: tls)
    }

    /// Runs a server while `body` runs, and ends it gracefully.
    static func with(
        _ ingest: StubIngest = StubIngest(),
        limits: ServerLimits = ServerLimits(),
        certificates: ServerCertificates? = nil,
        certificatePoll: Duration = .seconds(5),
        _ body: (TestServer) async throws -> Void
    ) async throws {
        let metrics = SiwadMetrics(version: "test", appIDs: ["com.example.app"])
        let (ports, running) = AsyncStream.makeStream(of: Int.self)
        let server = NotificationServer(
            address: ListenAddress(host: "127.0.0.1", port: 0),
            path: path,
            certificates: certificates,
            limits: limits,
            certificatePoll: certificatePoll,
            metrics: metrics,
            eventLoops: eventLoops,
            log: log,
            onRunning: { running.yield($0) },
            receiver: ingest.receiver
        )
        let services = ServiceGroup(
            configuration: ServiceGroupConfiguration(services: [Running(work: server.run)], logger: log.logger)
        )
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { try await services.run() }
            var iterator = ports.makeAsyncIterator()
            guard let port = await iterator.next() else { throw CancellationError() }
            try await body(
                TestServer(
                    port: port,
                    metrics: metrics,
                    ingest: ingest,
                    beginShutdown: { await services.triggerGracefulShutdown() }
                )
            )
            await services.triggerGracefulShutdown()
            try await group.waitForAll()
        }
    }

    private struct Running: Service {
        let work: @Sendable () async throws -> Void
        func run() async throws { try await work() }
    }
}

/// A request for the endpoint with this body.
func post(_ body: String, fields: String = "") -> String {
    "POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\nContent-Length: \(body.utf8.count)\r\n\(fields)\r\n\(body)"
}
