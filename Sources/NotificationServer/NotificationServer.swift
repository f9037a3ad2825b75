import Basics
import HummingbirdCore
package import Listening
import Logging
import NIOCore
import NIOSSL
package import Telemetry

/// The notification endpoint: HTTP/1.1, with TLS if there are certificates.
///
/// Hummingbird's server listens, tracks the connections and drains them. The requests are handled by one channel handler
/// per connection, which costs half of a task per request.
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
    private let receiver: RequestReceiverFactory

    /// - Parameters:
    ///   - path: of the endpoint; every other path is 404.
    ///   - certificatePoll: the interval of checks for changed certificate files.
    ///   - onRunning: called with the port once connections are accepted.
    ///   - receiver: makes the receiver of each event loop.
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
        receiver: @escaping RequestReceiverFactory
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
        self.receiver = receiver
    }

    /// Serves until a graceful shutdown has answered the last request, or until it is cancelled.
    ///
    /// - Throws: `ServerError` if it cannot listen.
    package func run() async throws {
        let loops = try await makeLoops()
        try await withCleanup(loops.end) { try await serve(loops) }
    }

    private func serve(_ loops: NotificationLoops) async throws {
        let server = Server(
            childChannelSetup: NotificationChannel(loops: loops, certificates: certificates),
            configuration: ServerConfiguration(address: .hostname(address.host, port: address.port), backlog: 1024),
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
                group.addTask {
                    await certificates.watch(every: certificatePoll, log: log) {
                        metrics.certificateExpiry.set(Double(certificates.expiry))
                    }
                }
            }
            // The watch ends only when it is cancelled, so the first to end is the server.
            try await group.next()
            group.cancelAll()
        }
    }

    private func makeLoops() async throws -> NotificationLoops {
        let all = try OpenFileLimit.raise()
        // The application endpoint and the operations endpoint have a sixteenth each.
        let allowed = all - all / 8
        let wanted = certificates == nil ? limits.connections : min(limits.connections, limits.encryptedConnections)
        if allowed < wanted {
            log.warning(
                "fewer connections than configured: the limit of open files is low",
                ["connections": "\(allowed)", "configured": "\(wanted)"]
            )
        }
        let loopCount = eventLoops.group.makeIterator().reduce(0) { count, _ in count + 1 }
        let perLoop = max(1, min(allowed, wanted) / max(1, loopCount))
        return try await NotificationLoops(group: eventLoops.group) { [path, limits, metrics, receiver] loop, deliver in
            NotificationLoop(
                eventLoop: loop,
                path: path,
                limits: limits,
                connectionLimit: perLoop,
                metrics: metrics,
                receive: receiver(deliver)
            )
        }
    }

    @Sendable private func running(_ channel: any Channel) async {
        do {
            try await channel.eventLoop.submit { [log] in
                try channel.pipeline.syncOperations.addHandler(AcceptErrors(log: log), position: .first)
            }.get()
        } catch {
            // The channel is already closed and accepts nothing.
            return
        }
        let port = channel.localAddress?.port ?? address.port
        let place = ListenAddress(host: address.host, port: port)
        log.info(
            "notification endpoint is open",
            ["address": "\(place)", "path": path, "tls": certificates == nil ? "no" : "yes"]
        )
        await onRunning(port)
    }
}

/// Sets up the connections that Hummingbird's server accepts.
private struct NotificationChannel: ServerChildChannel {
    struct Value: ServerChildChannelValue {
        let channel: any Channel
    }

    let loops: NotificationLoops
    let certificates: ServerCertificates?

    func setup(channel: any Channel, logger: Logger) -> EventLoopFuture<Value> {
        channel.eventLoop.makeCompletedFuture {
            // Small reads share the event loop fairly among connections, and a small write buffer soon pauses reading from
            // a client that does not read its responses.
            if let options = channel.syncOptions {
                try options.setOption(.maxMessagesPerRead, value: 1)
                let allocator = AdaptiveRecvByteBufferAllocator(minimum: 512, initial: 2048, maximum: 4096)
                try options.setOption(.recvAllocator, value: allocator)
                try options.setOption(.writeBufferWaterMark, value: .init(low: 4096, high: 16_384))
            }
            let loop = try loops.state(on: channel.eventLoop)
            let tls = certificates.map { NIOSSLServerHandler(context: $0.context) }
            try NotificationConnection.add(to: channel.pipeline.syncOperations, loop: loop, tls: tls)
            return Value(channel: channel)
        }
    }

    /// Waits for the end of the connection, and closes it when the server no longer waits.
    func handle(value: Value, logger: Logger) async {
        await withTaskCancellationHandler {
            // Fails only if the event loop has stopped, which ends every connection.
            try? await value.channel.closeFuture.get()
        } onCancel: {
            value.channel.close(promise: nil)
        }
    }
}
