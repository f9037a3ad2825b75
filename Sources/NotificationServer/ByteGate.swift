import NIOCore

/// The first to see a connection's bytes and the last to ask for more: notes when a request begins, takes the requests out
/// that need no decoding, drops what nobody will read, and stops reading while too much waits.
final class ByteGate: ChannelDuplexHandler {
    typealias InboundIn = ByteBuffer
    typealias InboundOut = ByteBuffer
    typealias OutboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    private enum Flow {
        case open
        case paused(readWanted: Bool)
    }

    private let connection: NotificationConnection
    private var flow = Flow.open
    /// The decoder has had some of the bytes. From then on it gets all that follow, since only it knows where it stands.
    private var isDecoding = false
    private var context: ChannelHandlerContext?

    init(_ connection: NotificationConnection) {
        self.connection = connection
    }

    /// Stops or resumes reading.
    func pause(_ pauses: Bool) {
        switch (flow, pauses) {
        case (.open, true):
            flow = .paused(readWanted: false)
        case (.paused(let readWanted), false):
            flow = .open
            if readWanted {
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
        guard connection.bytesArrived() else { return }
        var bytes = Self.unwrapInboundIn(data)
        if !isDecoding { connection.takePlainRequests(from: &bytes) }
        guard bytes.readableBytes > 0 else { return }
        isDecoding = true
        let count = bytes.readableBytes
        context.fireChannelRead(Self.wrapInboundOut(bytes))
        connection.bytesDecoded(count)
    }

    /// Before the decoder takes the end for a mistake in what it has of a request.
    func channelInactive(context: ChannelHandlerContext) {
        connection.leave()
        context.fireChannelInactive()
    }

    func read(context: ChannelHandlerContext) {
        switch flow {
        case .open: context.read()
        case .paused: flow = .paused(readWanted: true)
        }
    }
}
