import HummingbirdCore
package import Listening
package import NIOCore
package import SignIn
package import Telemetry

/// The private endpoint through which the application's own backends sign people in: HTTP/1.1 on a socket in the file system
/// or over TCP, with TLS if there are certificates.
package struct ApplicationServer: Sendable {
    package enum Address: Sendable, Equatable, CustomStringConvertible {
        case socket(UnixSocket)
        case network(ListenAddress)

        package var description: String {
            switch self {
            case .socket(let socket): "\(socket)"
            case .network(let address): "\(address)"
            }
        }
    }

    /// The resources that callers may use.
    package struct Limits: Sendable {
        /// Open connections. At the limit, the one that was silent for longest is closed to make room.
        package var connections = 1024
        /// Requests at the same time; above it 503.
        package var requests = 256
        /// From the head of a request to its response.
        package var deadline = TimeAmount.seconds(10)
        /// Silence between requests; also for a head, for a TLS handshake, and for a client to read a response.
        package var idleDeadline = TimeAmount.seconds(75)
        /// The time to read the response to a request that was not read to its end.
        package var lingerDeadline = TimeAmount.seconds(2)

        package init() {}
    }

    private let address: Address
    private let certificates: ServerCertificates?
    private let certificatePoll: Duration
    private let certificateExpiry: Gauge?
    private let limits: Limits
    private let eventLoops: EventLoops
    private let log: Log
    private let onRunning: @Sendable (Address) async -> Void
    private let endpoint: ApplicationEndpoint

    /// - Parameters:
    ///   - certificatePoll: the interval of checks for changed certificate files.
    ///   - certificateExpiry: set to the time when the certificate expires.
    ///   - callers: asked for each request; nil: no tokens are configured, and every caller is accepted.
    ///   - onRunning: called once connections are accepted, with the port that the system chose.
    package init(
        address: Address,
        certificates: ServerCertificates? = nil,
        certificatePoll: Duration = .seconds(5),
        certificateExpiry: Gauge? = nil,
        limits: Limits = Limits(),
        eventLoops: EventLoops,
        log: Log,
        callers: @escaping @Sendable () -> CallerDirectory?,
        service: any ApplicationService,
        onRunning: @escaping @Sendable (Address) async -> Void = { _ in }
    ) {
        self.address = address
        self.certificates = certificates
        self.certificatePoll = certificatePoll
        self.certificateExpiry = certificateExpiry
        self.limits = limits
        self.eventLoops = eventLoops
        self.log = log
        self.onRunning = onRunning
        self.endpoint = ApplicationEndpoint(service: service, callers: callers)
    }

    /// Serves until a graceful shutdown has answered the last request and its work has ended, or until it is cancelled.
    ///
    /// - Throws: `ServerError` if it cannot listen.
    package func run() async throws {
        switch address {
        case .network(let network):
            try await serve(at: .hostname(network.host, port: network.port)) { port in
                await opened(at: .network(ListenAddress(host: network.host, port: port ?? network.port)))
            }
        case .socket(let socket):
            let claim = try SocketClaim(socket)
            defer { claim.remove() }
            try await serve(at: .unixDomainSocket(path: claim.listeningPath)) { _ in
                try claim.publish()
                await opened(at: address)
            }
        }
    }

    private func opened(at address: Address) async {
        log.info(
            "application endpoint is open",
            ["address": "\(address)", "tls": certificates == nil ? "no" : "yes"]
        )
        await onRunning(address)
    }

    /// - Parameter opened: called before the first connection is accepted; its error ends the server.
    private func serve(
        at place: BindAddress,
        opened: @escaping @Sendable (_ port: Int?) async throws -> Void
    ) async throws {
        let allowed = try OpenFileLimit.raise()
        let channel = ApplicationChannel(
            endpoint: endpoint,
            certificates: certificates,
            limits: limits,
            connections: OpenConnections(limit: min(limits.connections, max(16, allowed / 16)))
        )
        let (failures, failure) = AsyncStream.makeStream(of: (any Error).self)
        let server = Server(
            childChannelSetup: channel,
            configuration: ServerConfiguration(address: place, backlog: 1024),
            onServerRunning: { [log] listener in
                do {
                    try await listener.eventLoop.submit {
                        let handler = AcceptErrors(log: log)
                        try listener.pipeline.syncOperations.addHandler(handler, position: .first)
                    }.get()
                    try await opened(listener.localAddress?.port)
                } catch {
                    failure.yield(error)
                    listener.close(promise: nil)
                }
            },
            eventLoopGroup: eventLoops.group,
            logger: log.quieter(than: .warning).logger
        )
        if let certificates { certificateExpiry?.set(Double(certificates.expiry)) }
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                do {
                    try await server.run()
                } catch let error as CancellationError {
                    throw error
                } catch {
                    throw ServerError.listening(on: "\(address)", setting: address.setting, error)
                }
            }
            if let certificates {
                group.addTask {
                    await certificates.watch(every: certificatePoll, log: log) {
                        certificateExpiry?.set(Double(certificates.expiry))
                    }
                }
            }
            // The watch ends only when it is cancelled, so the first to end is the server.
            try await group.next()
            group.cancelAll()
        }
        await channel.requests.untilFree()
        failure.finish()
        for await error in failures { throw error }
    }
}

extension ApplicationServer.Address {
    fileprivate var setting: String {
        switch self {
        case .socket(let socket): socket.setting
        case .network(let address): address.setting
        }
    }
}
