import Glibc
import Listening
import NIOCore
import NIOEmbedded
import Testing

@Suite("Failures to accept a connection")
struct AcceptErrorsTests {
    private final class Reads: ChannelOutboundHandler {
        typealias OutboundIn = Never

        var count = 0

        func read(context: ChannelHandlerContext) {
            count += 1
            context.read()
        }
    }

    /// As a listener of NIO: its pause, which keeps errors from the stream of connections, is behind siwad's handler.
    private func reads(after error: any Error) throws -> (first: Int, second: Int) {
        let channel = EmbeddedChannel()
        let reads = Reads()
        let pause = AcceptBackoffHandler(shouldForwardIOErrorCaught: false)
        try channel.pipeline.syncOperations.addHandlers([reads, AcceptErrors(log: TestServer.log), pause])
        channel.pipeline.fireErrorCaught(error)
        let before = reads.count
        channel.read()
        let first = reads.count - before
        channel.embeddedEventLoop.advanceTime(to: .now() + .seconds(2))
        try channel.throwIfErrorCaught()
        return (first, reads.count - before)
    }

    @Test(
        "Without file descriptors or memory, the next attempt is made a second later.",
        arguments: [EMFILE, ENFILE, ENOBUFS, ENOMEM]
    )
    func pause(_ code: CInt) throws {
        #expect(try reads(after: IOError(errnoCode: code, reason: "accept")) == (0, 1))
    }

    @Test("A connection that its client gave up delays no other.")
    func aborted() throws {
        #expect(try reads(after: IOError(errnoCode: ECONNABORTED, reason: "accept")) == (1, 1))
    }
}
