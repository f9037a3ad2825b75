import NIOCore
import NIOHTTP1

/// Replaces the socket of a connection: records writes and supports closing only the sending side.
final class FuzzedSocket: ChannelOutboundHandler {
    typealias OutboundIn = ByteBuffer

    private(set) var sent: [UInt8] = []
    /// The connection has requested a read.
    var wantsRead = false
    /// The sending side is closed.
    private(set) var isOutputClosed = false
    private var written: [UInt8] = []
    private var promises: [EventLoopPromise<Void>] = []

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        let bytes = Self.unwrapOutboundIn(data).readableBytesView
        require(!isOutputClosed || bytes.isEmpty, "nothing is written after the last response")
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

/// Records the parts that the decoder passes to the connection.
final class DecodedRequests: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias InboundOut = HTTPServerRequestPart

    private(set) var heads: [HTTPRequestHead] = []
    /// The decoder reported an error.
    private(set) var failed = false

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        if case .head(let head) = Self.unwrapInboundIn(data) {
            require(!failed, "nothing is decoded after an error")
            heads.append(head)
        }
        context.fireChannelRead(data)
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        failed = true
        context.fireErrorCaught(error)
    }
}
