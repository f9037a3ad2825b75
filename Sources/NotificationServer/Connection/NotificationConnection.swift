import NIOCore
import NIOHTTP1
import NIOTLS
import Telemetry

/// One connection of the notification endpoint. All of its work happens on its event loop, without a task per request.
///
/// Bytes pass a ``ByteGate`` and NIO's HTTP decoder and arrive here as parts of requests. The ``ConnectionExchange``
/// decides; this class performs the actions.
final class NotificationConnection: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias OutboundOut = ByteBuffer

    /// The index among the connections of the loop; `nil` once removed.
    var position: Int?
    var exchange: ConnectionExchange
    /// The body that is arriving.
    private(set) var body = ByteBuffer()
    /// The Content-Length of that body; `nil` for chunks.
    private var expectedLength: Int?
    /// Bytes held for a request that has not arrived completely.
    private(set) var unfinishedBytes = 0
    private let loop: NotificationLoop
    private var gate: ByteGate?
    private var context: ChannelHandlerContext?
    /// The TLS handler; `nil` for plain HTTP.
    private var tls: ChannelHandlerContext?
    private var needsFlush = false

    private init(loop: NotificationLoop, tls: ChannelHandlerContext?) {
        self.loop = loop
        self.tls = tls
        self.exchange = ConnectionExchange(isSecure: tls != nil, now: .now())
    }

    /// Adds the handlers of a connection: TLS if there is any, the gate, NIO's decoder and the connection itself.
    @discardableResult
    static func add(
        to pipeline: ChannelPipeline.SynchronousOperations,
        loop: NotificationLoop,
        tls: (any ChannelHandler)? = nil
    ) throws -> NotificationConnection {
        if let tls { try pipeline.addHandler(tls) }
        let connection = NotificationConnection(loop: loop, tls: try tls.map { try pipeline.context(handler: $0) })
        let gate = ByteGate(connection)
        var limits = NIOHTTPDecoderLimitConfiguration()
        limits.maxHeaderFieldSize = loop.limits.headBytes
        limits.maxHeaderListSize = loop.limits.headBytes
        limits.maxHeaderFieldCount = loop.limits.headerFields
        let decoder = HTTPRequestDecoder(leftOverBytesStrategy: .dropBytes, limitConfiguration: limits)
        try pipeline.addHandler(gate)
        try pipeline.addHandler(ByteToMessageHandler(decoder))
        try pipeline.addHandler(connection)
        connection.gate = gate
        return connection
    }

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

    // MARK: Reading

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch Self.unwrapInboundIn(data) {
        case .head(let head):
            discardRequest()
            let judgement = loop.inspection.judge(head)
            switch exchange.headArrived(judgement, isHEAD: head.method == .HEAD, now: .now()) {
            case .collect:
                if case .accepted(let request) = judgement {
                    expectedLength = request.contentLength
                    if request.expectsContinue { writeReady() }
                }
            case .respond: writeReady()
            case .ignore: break
            }
        case .body(let bytes):
            switch exchange.bodyArrived(bytes.readableBytes, limit: loop.limits.bodyBytes) {
            case .collect where bytes.readableBytes == expectedLength:
                // The whole body in one piece: its end follows in the same read, so it is neither copied nor counted.
                body = bytes
            case .collect:
                // Copied, because `bytes` may keep a much larger read buffer in memory.
                body.writeImmutableBuffer(bytes)
                holdUnfinished(bytes.readableBytes)
            case .ignore:
                break
            case .respond:
                discardRequest()
                writeReady()
            case .close:
                close()
            }
        case .end:
            let now = NIODeadline.now()
            if let sequence = exchange.endArrived(now: now) {
                submit(sequence, now: now)
            }
        }
    }

    /// Passes the body of request number `sequence` to the receiver.
    private func submit(_ sequence: UInt64, now: NIODeadline) {
        let ticket = loop.tickets.issue(to: self, sequence: sequence)
        let response = loop.receive(body.readableBytesUInt8Span, ticket)
        discardRequest()
        if let response {
            loop.tickets.redeem(ticket)
            exchange.decided(sequence, Outcome(response))
            writeReady()
        } else {
            exchange.submitted(sequence, ticket: ticket, now: now)
            adjustFlow()
        }
    }

    /// Counts bytes of a request that has not arrived completely.
    func holdUnfinished(_ count: Int) {
        unfinishedBytes += count
        loop.unfinishedBytesChanged(by: count)
    }

    /// Frees what is held of a request that is complete or will not be used.
    private func discardRequest() {
        body = ByteBuffer()
        expectedLength = nil
        loop.unfinishedBytesChanged(by: -unfinishedBytes)
        unfinishedBytes = 0
    }

    /// Pauses reading while many requests are pending or the peer does not read its responses.
    private func adjustFlow() {
        guard let context else { return }
        let isFull = exchange.pendingCount >= loop.limits.pipelined || !context.channel.isWritable
        gate?.pause(isFull && !exchange.ignoresInput)
    }

    func channelReadComplete(context: ChannelHandlerContext) {
        flush()
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        adjustFlow()
    }

    // MARK: Writing

    /// Writes the responses that are next in order. ``flush()`` must follow.
    func writeReady() {
        guard let context else { return }
        let now = NIODeadline.now()
        while let writable = exchange.nextWritable(now: now) {
            needsFlush = true
            switch writable {
            case .interim:
                context.write(Self.wrapOutboundOut(loop.responses.interim), promise: nil)
            case .response(let outcome, let since, let omitsBody, let isLast):
                let bytes = loop.responses.bytes(outcome, closing: isLast, withoutBody: omitsBody)
                context.write(Self.wrapOutboundOut(bytes), promise: nil)
                loop.metrics.requestDuration.record(Int((now - since).nanoseconds))
                outcome.count(in: loop.metrics)
            }
        }
        adjustFlow()
        needsFlush = needsFlush || exchange.isFinished
    }

    /// Sends what was written, and ends the connection after its last response.
    func flush() {
        guard needsFlush else { return }
        needsFlush = false
        if exchange.isFinished {
            finish()
        } else {
            context?.flush()
        }
    }

    // MARK: Ending

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        switch event {
        case TLSUserEvent.handshakeCompleted:
            exchange.handshakeCompleted(now: .now())
        case ChannelEvent.inputClosed:
            perform(exchange.peerFinished(now: .now()))
        case is ChannelShouldQuiesceEvent:
            perform(exchange.drainingBegan())
        default:
            break
        }
    }

    private func perform(_ action: ConnectionExchange.EndAction) {
        switch action {
        case .respond:
            writeReady()
            flush()
        case .finish:
            finish()
        case .close:
            close()
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        guard let error = error as? HTTPParserError else {
            // The transport failed, so no response can reach the peer.
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
            discardRequest()
        }
        writeReady()
        flush()
    }

    func timePassed(now: NIODeadline) {
        let overdue = exchange.timePassed(now: now, limits: loop.limits)
        for ticket in overdue.abandoned {
            loop.tickets.redeem(ticket)
        }
        if overdue.closes {
            close()
        } else if overdue.finishes {
            finish()
        } else if overdue.responds {
            if exchange.ignoresInput {
                discardRequest()
            }
            writeReady()
            flush()
        }
    }

    /// Closes only the sending side and waits for the peer to close its own. Closing a socket with unread input makes the
    /// kernel reset the connection, and the peer would lose the response.
    private func finish() {
        guard let context else { return }
        switch exchange.ending {
        case .lingering:
            return
        case .peerFinished:
            // With the deadline of lingering, because a peer that never reads would delay the write for ever.
            exchange.lingeringBegan(now: .now())
            let written = context.eventLoop.makePromise(of: Void.self)
            written.futureResult.assumeIsolated().whenComplete { [weak self] _ in self?.close() }
            context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer()), promise: written)
        case .open:
            exchange.lingeringBegan(now: .now())
            gate?.pause(false)
            context.flush()
            context.close(mode: .output, promise: nil)
        }
    }

    /// Closes the connection without a response. It does not wait for the peer's TLS closure alert, which may never come
    /// while the connection holds a file descriptor.
    func close() {
        leave()
        (tls ?? context)?.close(promise: nil)
    }

    /// Returns tickets, memory and the place among the connections immediately. The channel itself closes in the next
    /// iteration of the event loop.
    func leave() {
        for ticket in exchange.closed() {
            loop.tickets.redeem(ticket)
        }
        discardRequest()
        loop.remove(self)
    }
}

/// The first handler of a connection after TLS: records when a request begins, drops input after the last request, and
/// pauses reading.
final class ByteGate: ChannelDuplexHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundIn = ByteBuffer

    private enum Flow {
        case open
        case paused(readRequested: Bool)
    }

    private let connection: NotificationConnection
    private var flow = Flow.open
    private var context: ChannelHandlerContext?

    init(_ connection: NotificationConnection) {
        self.connection = connection
    }

    func pause(_ pauses: Bool) {
        switch (flow, pauses) {
        case (.open, true):
            flow = .paused(readRequested: false)
        case (.paused(let readRequested), false):
            flow = .open
            if readRequested {
                context?.read()
            }
        case (.open, false), (.paused, true):
            break
        }
    }

    func handlerAdded(context: ChannelHandlerContext) {
        self.context = context
    }

    func handlerRemoved(context: ChannelHandlerContext) {
        self.context = nil
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard !connection.exchange.ignoresInput else { return }
        connection.exchange.bytesArrived(now: .now())
        let count = Self.unwrapInboundIn(data).readableBytes
        context.fireChannelRead(data)
        if connection.exchange.awaitsHead {
            // The decoder keeps them until the head is complete.
            connection.holdUnfinished(count)
        }
    }

    /// Before the decoder reports the end of the stream as an error in an incomplete request.
    func channelInactive(context: ChannelHandlerContext) {
        connection.leave()
        context.fireChannelInactive()
    }

    func read(context: ChannelHandlerContext) {
        switch flow {
        case .open: context.read()
        case .paused: flow = .paused(readRequested: true)
        }
    }
}
