import Hummingbird
import HummingbirdCore
import NIOCore
import Telemetry

/// A small server with Hummingbird's router, for what is asked seldom.
struct RoutedServer: Sendable {
    /// Where it listens.
    let address: ListenAddress
    let eventLoops: EventLoops
    let log: Log
    /// Called with the port as soon as connections are accepted.
    let onRunning: @Sendable (Int) async -> Void

    /// Serves the routes until a graceful shutdown or until it is cancelled.
    func run(_ router: Router<BasicRequestContext>) async throws {
        let quiet = log.quieter(than: .warning).logger
        let application = Application(
            router: router,
            server: .http1(configuration: .init(idleTimeout: .seconds(75))),
            configuration: ApplicationConfiguration(
                address: .hostname(address.host, port: address.port),
                availableConnectionsDelegate: .maximum(256, logger: quiet)
            ),
            onServerRunning: { await onRunning($0.localAddress?.port ?? address.port) },
            eventLoopGroupProvider: .shared(eventLoops.group),
            logger: quiet
        )
        do {
            try await application.run()
        } catch let error as IOError {
            throw ServerError.listening(on: address, error)
        }
    }
}
