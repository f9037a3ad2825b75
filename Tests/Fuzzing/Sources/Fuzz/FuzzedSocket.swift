import NIOCore
import NIOHTTP1

/// Where a connection's socket would be: takes what is written, and can be closed by half.
final class FuzzedSocket: ChannelOutboundHandler {
    typealias OutboundIn = ByteBuffer

    /// What was sent.
    private(set) var sent: [UInt8] = []
    /// More bytes are wanted.
    var wantsRead = false
    /// Nothing can be sent any more.
    private(set) var isOutputClosed = false
    private var written: [UInt8] = []
    private var promises: [EventLoopPromise<Void>] = []

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        let bytes = Self.unwrapOutboundIn(data).readableBytesView
        require(!isOutputClosed || bytes.isEmpty, "nothing is written after the last answer")
        written += bytes
        if let promise { promises.append(promise) }
    }

    func flush(context: ChannelHandlerContext) {
        sent += written
        written = []
        let kept = promises
        promises = []
        for promise in kept { promise.succeed() }
    }

    func read(context: ChannelHandlerContext) {
        wantsRead = true
    }

    func close(context: ChannelHandlerContext, mode: CloseMode, promise: EventLoopPromise<Void>?) {
        isOutputClosed = true
        if mode == .output {
            promise?.succeed()
            return
        }
        let kept = promises
        promises = []
        for promise in kept { promise.fail(ChannelError.ioOnClosedChannel) }
        context.close(mode: mode, promise: promise)
    }
}

/// Sees what the decoder makes of the bytes before the connection does.
final class DecodedRequests: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias InboundOut = HTTPServerRequestPart

    /// Every head, in the order of their arrival.
    private(set) var heads: [HTTPRequestHead] = []
    /// The bytes weren't HTTP.
    private(set) var failed = false

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        if case .head(let head) = Self.unwrapInboundIn(data) {
            require(!failed, "nothing is decoded after what isn't HTTP")
            heads.append(head)
        }
        context.fireChannelRead(data)
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        failed = true
        context.fireErrorCaught(error)
    }
}
