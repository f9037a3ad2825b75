import NIOCore
import NIOHTTP1

extension NotificationConnection {
    /// Takes its place in a pipeline, behind what stands there: bytes come in, bytes go out.
    func join(_ pipeline: ChannelPipeline.SynchronousOperations) throws {
        var decoderLimits = NIOHTTPDecoderLimitConfiguration()
        decoderLimits.maxHeaderFieldSize = loop.limits.headBytes
        decoderLimits.maxHeaderListSize = loop.limits.headBytes
        decoderLimits.maxHeaderFieldCount = loop.limits.headerFields
        try pipeline.addHandler(makeGate())
        try pipeline.addHandler(
            ByteToMessageHandler(
                HTTPRequestDecoder(leftOverBytesStrategy: .dropBytes, limitConfiguration: decoderLimits)
            )
        )
        try pipeline.addHandler(self)
    }
}
