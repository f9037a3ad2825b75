import HummingbirdCore
import NIOCore
package import Telemetry

/// The notification endpoint: HTTP/1.1, with TLS if there are certificates.
///
/// Hummingbird's server listens, keeps track of the connections and drains them; the requests are handled by one plain
/// channel handler per connection, which costs half of what a task per request costs.
package struct NotificationServer: Sendable {
    private let address: ListenAddress
    private let path: String
    private let certificates: ServerCertificates?
    private let limits: ServerLimits
    private let certificatePoll: Duration
    private let metrics: SiwadMetrics
    private let eventLoops: EventLoops
    private let log: Log
    private let onRunning: @Sendable (Int) async -> Void
    private let lane: LaneFactory

    /// A server that listens once it runs.
    ///
    /// - Parameters:
    ///   - path: of the endpoint; every other path is 404.
    ///   - certificatePoll: how often the certificate files are looked at.
    ///   - onRunning: called with the port as soon as connections are accepted.
    ///   - lane: makes the intake of an event loop.
    package init(
        address: ListenAddress,
        path: String,
        certificates: ServerCertificates? = nil,
        limits: ServerLimits = ServerLimits(),
        certificatePoll: Duration = .seconds(5),
        metrics: SiwadMetrics,
        eventLoops: EventLoops,
        log: Log,
        onRunning: @escaping @Sendable (_ port: Int) async -> Void = { _ in },
        lane: @escaping LaneFactory
    ) {
        self.address = address
        self.path = path
        self.certificates = certificates
        self.limits = limits
        self.certificatePoll = certificatePoll
        self.metrics = metrics
        self.eventLoops = eventLoops
        self.log = log
        self.onRunning = onRunning
        self.lane = lane
    }

    /// Serves until a graceful shutdown has answered the last request, or until it is cancelled.
    ///
    /// - Throws: `ServerError` when it can't listen.
    package func run() async throws {
        let loops = try await makeLoops()
        do {
            try await serve(loops)
        } catch {
            await loops.end()
            throw error
        }
        await loops.end()
    }

    private func serve(_ loops: NotificationLoops) async throws {
        let channel = NotificationChannel(loops: loops, certificates: certificates)
        let server = Server(
            childChannelSetup: channel,
            configuration: ServerConfiguration(
                address: .hostname(address.host, port: address.port),
                backlog: 1024
            ),
            onServerRunning: running,
            eventLoopGroup: eventLoops.group,
            logger: log.quieter(than: .warning).logger
        )
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                do {
                    try await server.run()
                } catch let error as CancellationError {
                    throw error
                } catch {
                    throw ServerError.listening(on: address, error)
                }
            }
            if let certificates {
                metrics.certificateExpiry.set(Double(certificates.expiry))
                group.addTask { await watch(certificates) }
            }
            // The watch ends only when it is cancelled, so the first to end is the server.
            try await group.next()
            group.cancelAll()
        }
    }

    private func makeLoops() async throws -> NotificationLoops {
        let allowed = try OpenFileLimit.raise()
        if allowed < limits.connections {
            log.warning(
                "fewer connections than configured: the limit of open files is low",
                ["connections": "\(allowed)", "configured": "\(limits.connections)"]
            )
        }
        let loopCount = eventLoops.group.makeIterator().reduce(0) { count, _ in count + 1 }
        let perLoop = max(1, min(allowed, limits.connections) / max(1, loopCount))
        return try await NotificationLoops(group: eventLoops.group) { [path, limits, metrics, lane] loop, deliver in
            NotificationLoop(
                eventLoop: loop,
                path: path,
                limits: limits,
                connectionLimit: perLoop,
                metrics: metrics,
                lane: lane(deliver)
            )
        }
    }

    @Sendable private func running(_ channel: any Channel) async {
        do {
            try await channel.eventLoop.submit { [log] in
                try channel.pipeline.syncOperations.addHandler(AcceptErrors(log: log), position: .first)
            }.get()
        } catch {
            // Closed already: nothing will be accepted.
            return
        }
        let port = channel.localAddress?.port ?? address.port
        log.info(
            "notification endpoint is open",
            [
                "address": "\(ListenAddress(host: address.host, port: port))", "path": path,
                "tls": certificates == nil ? "no" : "yes",
            ]
        )
        await onRunning(port)
    }

    private func watch(_ certificates: ServerCertificates) async {
        // Sleeping ends early only when the server has ended.
        while (try? await Task.sleep(for: certificatePoll)) != nil {
            switch certificates.reloadIfChanged() {
            case .none:
                break
            case .loaded:
                metrics.certificateExpiry.set(Double(certificates.expiry))
                log.notice("certificate re-read")
            case .kept(let error):
                log.error("certificate not re-read, the old one stays in use", ["error": error.message])
            }
        }
    }
}
