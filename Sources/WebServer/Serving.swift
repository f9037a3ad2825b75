import Basics
import HTTPTypes
import HummingbirdCore
import Listening
import NIOCore
import Telemetry

/// Serves few requests over HTTP/1.1, until a graceful shutdown or until it is cancelled.
///
/// - Parameters:
///   - idleDeadline: for silence between requests, and for a client to read a response.
///   - onRunning: called with the port once connections are accepted.
///   - answer: called for each request. `Date` is added unless its response has one. The body of its response to `HEAD`
///     is left out; its error ends the connection without a response.
/// - Throws: `ServerError` if it cannot listen.
func serve(
    on address: ListenAddress,
    _ eventLoops: EventLoops,
    _ log: Log,
    idleDeadline: TimeAmount = .seconds(75),
    onRunning: @escaping @Sendable (_ port: Int) async -> Void,
    answer: @escaping @Sendable (Request) async throws -> Response
) async throws {
    let quiet = log.quieter(than: .warning).logger
    let http = HTTP1Channel(
        responder: { request, writer, channel in
            var response = try await answer(request)
            if response.headers[.date] == nil { response.headers[.date] = WallTime.now().httpDate }
            if request.method == .head { response = response.createHeadResponse() }
            // A write waits for a client that does not read.
            let timer = channel.eventLoop.scheduleTask(in: idleDeadline) { channel.close(promise: nil) }
            defer { timer.cancel() }
            try await writer.write(response: response.head, body: response.body)
        },
        configuration: HTTP1Channel.Configuration(idleTimeout: idleDeadline)
    )
    let server = Server(
        childChannelSetup: http,
        configuration: ServerConfiguration(
            address: .hostname(address.host, port: address.port),
            availableConnectionsDelegate: MaximumAvailableConnections(OpenFileLimit.fewConnections, logger: quiet)
        ),
        onServerRunning: { listener in
            do {
                try await listener.eventLoop.submit {
                    try listener.pipeline.syncOperations.addHandler(AcceptErrors(log: log), position: .first)
                }.get()
            } catch {
                // The listener is already closed and accepts nothing.
                return
            }
            await onRunning(listener.localAddress?.port ?? address.port)
        },
        eventLoopGroup: eventLoops.group,
        logger: quiet
    )
    do {
        try await server.run()
    } catch let error as IOError {
        throw ServerError.listening(on: address, error)
    }
}
