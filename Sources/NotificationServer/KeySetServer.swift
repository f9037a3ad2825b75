import Hummingbird
import NIOCore
package import Telemetry

/// Publishes a key set at `/auth/keys`, where Apple publishes its own: for development without Apple.
package struct KeySetServer: Sendable {
    /// Where the key set is published.
    package static let path = "/auth/keys"

    private let address: ListenAddress
    private let keySet: [UInt8]
    private let eventLoops: EventLoops
    private let log: Log
    private let onRunning: @Sendable (Int) async -> Void

    /// A server that listens once it runs.
    ///
    /// - Parameters:
    ///   - keySet: a JSON Web Key Set.
    ///   - onRunning: called with the port as soon as connections are accepted.
    package init(
        address: ListenAddress,
        keySet: [UInt8],
        eventLoops: EventLoops,
        log: Log,
        onRunning: @escaping @Sendable (_ port: Int) async -> Void = { _ in }
    ) {
        self.address = address
        self.keySet = keySet
        self.eventLoops = eventLoops
        self.log = log
        self.onRunning = onRunning
    }

    /// Serves until a graceful shutdown or until it is cancelled.
    ///
    /// - Throws: `ServerError` when it can't listen.
    package func run() async throws {
        let router = Router()
        let body = ByteBuffer(bytes: keySet)
        router.get("/auth/keys") { _, _ in
            Response(
                status: .ok,
                headers: [.contentType: "application/json;charset=UTF-8"],
                body: ResponseBody(byteBuffer: body)
            )
        }
        try await RoutedServer(address: address, eventLoops: eventLoops, log: log, onRunning: onRunning).run(router)
    }
}
