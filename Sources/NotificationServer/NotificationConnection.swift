import NIOCore
import NIOHTTP1
import NIOTLS
import Telemetry

/// One connection of the notification endpoint: turns parts of requests into bodies for the intake, and answers into
/// bytes. All of it happens on the connection's event loop, without a task per request.
final class NotificationConnection: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias OutboundOut = ByteBuffer

    /// Where it stands among the loop's connections; `nil`: not any more.
    var position: Int?
    /// What it holds of a request that is still arriving, in bytes.
    var unfinishedBytes = 0
    /// What it shares with the other connections of its event loop.
    let loop: NotificationLoop
    /// What is being read and what may be written.
    var exchange: ConnectionExchange
    /// The body that is arriving.
    var body = ByteBuffer()
    /// How long that body was said to be; `nil` for chunks.
    var announced: Int?
    /// Something was written and not sent.
    var needsFlush = false
    /// Sees the bytes before they are decoded.
    private(set) var gate: ByteGate?
    /// Its place in the pipeline, while it has one.
    private(set) var context: ChannelHandlerContext?
    /// Where TLS sits; `nil`: plain HTTP.
    private var tls: ChannelHandlerContext?

    init(loop: NotificationLoop, isSecure: Bool) {
        self.loop = loop
        self.exchange = ConnectionExchange(isSecure: isSecure, now: .now())
    }

    /// The handler that sees the bytes before they are decoded.
    func makeGate() -> ByteGate {
        let gate = ByteGate(self)
        self.gate = gate
        return gate
    }

    /// Tells where TLS sits, so that the connection can be closed behind its back.
    func secured(by context: ChannelHandlerContext) {
        tls = context
    }

    /// The connection's worth when there are too many.
    func worth(now: NIODeadline) -> ConnectionExchange.Worth {
        exchange.worth(now: now)
    }

    // MARK: Pipeline

    func handlerAdded(context: ChannelHandlerContext) {
        self.context = context
        loop.add(self)
    }

    func handlerRemoved(context: ChannelHandlerContext) {
        leave()
        gate = nil
        tls = nil
        self.context = nil
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch Self.unwrapInboundIn(data) {
        case .head(let head):
            received(head)
        case .body(let bytes):
            received(bytes)
        case .end:
            receivedEnd()
        }
    }

    func channelReadComplete(context: ChannelHandlerContext) {
        flush()
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        adjustFlow()
    }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        switch event {
        case TLSUserEvent.handshakeCompleted:
            exchange.handshakeCompleted(now: .now())
        case ChannelEvent.inputClosed:
            follow(exchange.peerFinished(now: .now()))
        case is ChannelShouldQuiesceEvent:
            follow(exchange.drainingBegan())
        default:
            break
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        guard let error = error as? HTTPParserError else {
            // The transport failed: nobody is left to be told.
            close()
            return
        }
        let refusal: ProtocolError =
            switch error {
            case .headerOverflow: .headersTooLarge
            case .invalidVersion: .unsupportedVersion
            default: .malformedRequest
            }
        if exchange.parsingFailed(refusal, now: .now()) {
            dropUnfinished()
        }
        writeReady()
        flush()
    }

    // MARK: Events from outside of the pipeline

    /// Bytes came in. False: drop them.
    func bytesArrived() -> Bool {
        guard !exchange.ignoresInput else { return false }
        exchange.bytesArrived(now: .now())
        return true
    }

    /// The bytes that came in were decoded. What still waits for the rest of a head counts as unfinished.
    func bytesDecoded(_ count: Int) {
        if exchange.awaitsHead {
            keptUnfinished(count)
        }
    }

    /// The intake answered request number `sequence`. ``flush()`` must follow.
    func answered(_ sequence: UInt64, _ outcome: Outcome) {
        exchange.decided(sequence, outcome)
        writeReady()
    }

    /// Time has passed.
    func timePassed(now: NIODeadline) {
        let overdue = exchange.timePassed(now: now, limits: loop.limits)
        for ticket in overdue.abandoned {
            loop.tickets.redeem(ticket)
        }
        if overdue.closes {
            close()
        } else if overdue.finishes {
            finish()
        } else if overdue.answers {
            if exchange.ignoresInput {
                dropUnfinished()
            }
            writeReady()
            flush()
        }
    }

    /// Ends the connection without a word, and without waiting for the peer's farewell in TLS: until that comes, the
    /// connection would hold a file and count for nothing.
    func close() {
        leave()
        (tls ?? context)?.close(promise: nil)
    }

    /// Gives back all that it holds of the loop's, at once: the channel itself takes until the next turn of the loop.
    func leave() {
        for ticket in exchange.closed() {
            loop.tickets.redeem(ticket)
        }
        dropUnfinished()
        loop.remove(self)
    }

    /// Sends what was written, and ends the connection after its last answer.
    func flush() {
        guard needsFlush else { return }
        needsFlush = false
        if exchange.isFinished {
            finish()
        } else {
            context?.flush()
        }
    }
}
