import HummingbirdCore
import Logging
import NIOCore
import NIOSSL

/// How Hummingbird's server builds a connection of the notification endpoint.
struct NotificationChannel: ServerChildChannel {
    /// A connection, for as long as it is open.
    struct Value: ServerChildChannelValue {
        let channel: any Channel
    }

    /// The shared state of each event loop.
    let loops: NotificationLoops
    /// For TLS; `nil`: plain HTTP, for a proxy that ends TLS.
    let certificates: ServerCertificates?

    func setup(channel: any Channel, logger: Logger) -> EventLoopFuture<Value> {
        channel.eventLoop.makeCompletedFuture {
            try Self.restrain(channel)
            let pipeline = channel.pipeline.syncOperations
            let connection = NotificationConnection(
                loop: try loops.state(on: channel.eventLoop),
                isSecure: certificates != nil
            )
            if let certificates {
                let tls = NIOSSLServerHandler(context: certificates.context)
                try pipeline.addHandler(tls)
                connection.secured(by: try pipeline.context(handler: tls))
            }
            try connection.join(pipeline)
            return Value(channel: channel)
        }
    }

    /// Small reads and small write buffers: a client that sends many requests at once takes turns with the others, and
    /// one that doesn't read its answers is soon read no more.
    private static func restrain(_ channel: any Channel) throws {
        guard let options = channel.syncOptions else { return }
        try options.setOption(.maxMessagesPerRead, value: 1)
        try options.setOption(
            .recvAllocator,
            value: AdaptiveRecvByteBufferAllocator(minimum: 512, initial: 2048, maximum: 4096)
        )
        try options.setOption(.writeBufferWaterMark, value: .init(low: 4096, high: 16_384))
    }

    /// Waits for the end of the connection, whose work is done by its handlers; ends it when the server may wait no
    /// longer.
    func handle(value: Value, logger: Logger) async {
        await withTaskCancellationHandler {
            // The future only fails with its event loop, and then everything has ended.
            try? await value.channel.closeFuture.get()
        } onCancel: {
            value.channel.close(promise: nil)
        }
    }
}
