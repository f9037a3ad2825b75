import NIOCore

/// The first handler of a connection: records when a request begins, drops input after the last request, and stops reading
/// while too many responses are outstanding.
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
        let count = Self.unwrapInboundIn(data).readableBytes
        context.fireChannelRead(data)
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
