package import NIOCore
import NIOPosix
import Synchronization

/// An HTTP proxy whose tunnels (CONNECT) all lead to one port of this machine, whatever the name of the target.
package final class TunnelProxy: Sendable {
    package let url: String

    private let seen: Seen

    /// Runs a test with a proxy.
    package static func with(
        to port: Int,
        on group: any EventLoopGroup,
        _ body: (TunnelProxy) async throws -> Void
    ) async throws {
        let seen = Seen()
        let channel = try await ServerBootstrap(group: group)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(Entrance(to: port, seen))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        do {
            try await body(TunnelProxy(channel, seen))
        } catch {
            try await channel.close()
            throw error
        }
        try await channel.close()
    }

    /// The first lines of the requests that arrived without encryption.
    package var requests: [Substring] { seen.requests.withLock { $0 } }

    private init(_ channel: any Channel, _ seen: Seen) {
        self.seen = seen
        url = "http://127.0.0.1:\(channel.localAddress?.port ?? 0)"
    }

    private final class Seen: Sendable {
        let requests = Mutex<[Substring]>([])
    }

    /// Opens the tunnel that a client requests, and leaves the connection to a ``Relay``.
    private final class Entrance: ChannelInboundHandler, RemovableChannelHandler {
        typealias InboundIn = ByteBuffer

        private let port: Int
        private let seen: Seen
        private var request = ""

        init(to port: Int, _ seen: Seen) {
            self.port = port
            self.seen = seen
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            request += String(buffer: Self.unwrapInboundIn(data))
            guard request.hasSuffix("\r\n\r\n") else { return }
            let line = request.prefix { $0 != "\r\n" }
            seen.requests.withLock { $0.append(line) }
            guard line.hasPrefix("CONNECT ") else { return context.close(promise: nil) }
            let (client, entrance) = (context.channel, NIOLoopBound(self, eventLoop: context.eventLoop))
            // On the client's event loop, so that a relay only uses its own loop.
            ClientBootstrap(group: context.eventLoop)
                .channelInitializer { server in
                    server.eventLoop.makeCompletedFuture {
                        try server.pipeline.syncOperations.addHandler(Relay(to: client))
                    }
                }
                .connect(host: "127.0.0.1", port: port)
                .flatMapThrowing { server in
                    let pipeline = client.pipeline.syncOperations
                    try pipeline.addHandler(Relay(to: server))
                    pipeline.removeHandler(entrance.value, promise: nil)
                    client.writeAndFlush(ByteBuffer(string: "HTTP/1.1 200 OK\r\n\r\n"), promise: nil)
                }
                .whenFailure { _ in client.close(promise: nil) }
        }
    }

    /// Passes bytes, and the end of the connection, on to the other end of a tunnel.
    private final class Relay: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer

        private let other: any Channel

        init(to other: any Channel) { self.other = other }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            other.writeAndFlush(Self.unwrapInboundIn(data), promise: nil)
        }

        func channelInactive(context: ChannelHandlerContext) { other.close(promise: nil) }

        func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
    }
}
