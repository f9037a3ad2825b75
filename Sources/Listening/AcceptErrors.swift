import Glibc
package import NIOCore
package import Telemetry

/// Logs failures to accept a connection. If too many files are open or memory is short, it tells NIO, which then accepts
/// nothing for a second instead of trying without a pause. All other errors end here.
package final class AcceptErrors: ChannelInboundHandler {
    package typealias InboundIn = any Channel

    private static let lasting: Set<CInt> = [EMFILE, ENFILE, ENOBUFS, ENOMEM]

    private let log: Log
    private var lastLogged: NIODeadline?

    package init(log: Log) {
        self.log = log
    }

    package func errorCaught(context: ChannelHandlerContext, error: any Error) {
        if let error = error as? IOError, Self.lasting.contains(error.errnoCode) { context.fireErrorCaught(error) }
        let now = NIODeadline.now()
        if let lastLogged, now - lastLogged < .seconds(10) { return }
        lastLogged = now
        log.error("accepting a connection failed; check the limit of open files", ["error": "\(error)"])
    }
}
