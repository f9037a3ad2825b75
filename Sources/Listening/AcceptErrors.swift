package import NIOCore
package import Telemetry

/// Logs failures to accept a connection, for example because too many files are open. If they reached the stream of
/// accepted connections, they would end the server.
package final class AcceptErrors: ChannelInboundHandler {
    package typealias InboundIn = any Channel

    private let log: Log
    private var lastLogged: NIODeadline?

    package init(log: Log) {
        self.log = log
    }

    package func errorCaught(context: ChannelHandlerContext, error: any Error) {
        let now = NIODeadline.now()
        if let lastLogged, now - lastLogged < .seconds(10) { return }
        lastLogged = now
        log.error("accepting a connection failed; check the limit of open files", ["error": "\(error)"])
    }
}
