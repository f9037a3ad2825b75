import Basics
import HTTPTypes
import HummingbirdCore
import Listening
import Logging
import NIOCore
import Telemetry

/// Serves few requests over HTTP/1.1, until a graceful shutdown or until it is cancelled.
///
/// - Parameters:
///   - connectionLimit: at this number of connections, silent ones are closed to make room.
///   - idleDeadline: for silence between requests, and for a client to read a response.
///   - onRunning: called with the port once connections are accepted.
///   - answer: called for each request. `Date` is added unless its response has one. The body of its response to `HEAD`
///     is left out; its error ends the connection without a response.
/// - Throws: `ServerError` if it cannot listen.
func serve(
    on address: ListenAddress,
    _ eventLoops: EventLoops,
    _ log: Log,
    connectionLimit: Int = OpenFileLimit.fewConnections,
    idleDeadline: TimeAmount = .seconds(75),
    onRunning: @escaping @Sendable (_ port: Int) async -> Void,
    answer: @escaping @Sendable (Request) async throws -> Response
) async throws {
    let quiet = log.quieter(than: .warning).logger
    let connections = OpenConnections(limit: connectionLimit)
    let http = HTTP1Channel(
        responder: { request, writer, channel in
            connections.mark(channel, isBusy: true)
            defer { connections.mark(channel, isBusy: false) }
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
        childChannelSetup: LimitedChannel(http: http, connections: connections),
        configuration: ServerConfiguration(address: .hostname(address.host, port: address.port)),
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

/// Counts the connections of an HTTP server, which closes silent ones at its limit.
private struct LimitedChannel: ServerChildChannel {
    let http: HTTP1Channel
    let connections: OpenConnections

    func setup(channel: any Channel, logger: Logger) -> EventLoopFuture<HTTP1Channel.Value> {
        connections.add(channel)
        return http.setup(channel: channel, logger: logger)
    }

    func handle(value: HTTP1Channel.Value, logger: Logger) async {
        await http.handle(value: value, logger: logger)
    }
}
