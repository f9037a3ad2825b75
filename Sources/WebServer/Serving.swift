import Basics
import HTTPTypes
import HummingbirdCore
import Listening
import NIOCore
import Telemetry

/// Serves few requests over HTTP/1.1, until a graceful shutdown or until it is cancelled.
///
/// - Parameters:
///   - onRunning: called with the port once connections are accepted.
///   - answer: called for each request. `Date` is added unless its response has one. The body of its response to `HEAD`
///     is left out; its error ends the connection without a response.
/// - Throws: `ServerError` if it cannot listen.
func serve(
    on address: ListenAddress,
    _ eventLoops: EventLoops,
    _ log: Log,
    onRunning: @escaping @Sendable (_ port: Int) async -> Void,
    answer: @escaping @Sendable (Request) async throws -> Response
) async throws {
    let quiet = log.quieter(than: .warning).logger
    let channel = HTTP1Channel(
        responder: { request, writer, _ in
            var response = try await answer(request)
            if response.headers[.date] == nil { response.headers[.date] = WallTime.now().httpDate }
            if request.method == .head { response = response.createHeadResponse() }
            try await writer.write(response: response.head, body: response.body)
        },
        configuration: HTTP1Channel.Configuration(idleTimeout: .seconds(75))
    )
    let server = Server(
        childChannelSetup: channel,
        configuration: ServerConfiguration(
            address: .hostname(address.host, port: address.port),
            availableConnectionsDelegate: MaximumAvailableConnections(256, logger: quiet)
        ),
        onServerRunning: { await onRunning($0.localAddress?.port ?? address.port) },
        eventLoopGroup: eventLoops.group,
        logger: quiet
    )
    do {
        try await server.run()
    } catch let error as IOError {
        throw ServerError.listening(on: address, error)
    }
}
