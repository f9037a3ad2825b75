import NIOCore
import Telemetry

/// Keeps a listening socket alive when accepting fails for a reason that passes, such as too many open files.
///
/// Without it the error would reach the stream of accepted connections and end the server.
final class AcceptErrors: ChannelInboundHandler {
    typealias InboundIn = any Channel

    private let log: Log
    private var lastLogged: NIODeadline?

    init(log: Log) {
        self.log = log
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        let now = NIODeadline.now()
        if let lastLogged, now - lastLogged < .seconds(10) { return }
        lastLogged = now
        log.error("accepting a connection failed; check the limit of open files", ["error": "\(error)"])
    }
}
