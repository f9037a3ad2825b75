import NIOCore
import NIOPosix
import NIOSSL
import Synchronization

/// Answers complete requests with fixed bytes and records the requests.
final class StubWebServer: Sendable {
    /// 0 if it listens on a socket.
    let port: Int

    private let seen: Seen

    /// - Parameters:
    ///   - first: the answer to the first request; nil: as to the others.
    ///   - closes: whether the connection ends after the answer.
    ///   - tls: nil: without TLS.
    ///   - socket: the path of the socket to listen on; nil: a port of its own.
    static func with(
        answering answer: String,
        first: String? = nil,
        closes: Bool = true,
        tls: NIOSSLContext? = nil,
        socket: String? = nil,
        on group: any EventLoopGroup,
        _ body: (StubWebServer) async throws -> Void
    ) async throws {
        let seen = Seen()
        let bootstrap = ServerBootstrap(group: group)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    if let tls { try channel.pipeline.syncOperations.addHandler(NIOSSLServerHandler(context: tls)) }
                    try channel.pipeline.syncOperations.addHandler(
                        Answering(answer: answer, first: first ?? answer, closes: closes, seen: seen)
                    )
                }
            }
        let binding =
            socket.map { bootstrap.bind(unixDomainSocketPath: $0) } ?? bootstrap.bind(host: "127.0.0.1", port: 0)
        let channel = try await binding.get()
        let server = StubWebServer(channel, seen)
        do {
            try await body(server)
        } catch {
            try await channel.close()
            throw error
        }
        try await channel.close()
    }

    var received: [String] { seen.requests.withLock { $0 } }

    private init(_ channel: any Channel, _ seen: Seen) {
        self.seen = seen
        self.port = channel.localAddress?.port ?? 0
    }

    private final class Seen: Sendable {
        let requests = Mutex<[String]>([])
    }

    private final class Answering: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        private let answer: String
        private let first: String
        private let closes: Bool
        private let seen: Seen
        /// The bytes since the last answer. A request may arrive in several reads, and the client treats a second answer to
        /// one request as an error.
        private var pending = ""

        init(answer: String, first: String, closes: Bool, seen: Seen) {
            self.answer = answer
            self.first = first
            self.closes = closes
            self.seen = seen
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            pending += String(buffer: Self.unwrapInboundIn(data))
            guard Self.isWhole(pending) else { return }
            let isFirst = seen.requests.withLock { requests in
                requests.append(pending)
                return requests.count == 1
            }
            pending = ""
            let answer = isFirst ? first : answer
            context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: answer)), promise: nil)
            if closes {
                context.close(promise: nil)
            }
        }

        /// The requests of these tests have a Content-Length or no body.
        private static func isWhole(_ request: String) -> Bool {
            guard let end = request.firstRange(of: "\r\n\r\n") else { return false }
            let name = "content-length: "
            let length = request[..<end.lowerBound].lowercased().split(separator: "\r\n")
                .first { $0.hasPrefix(name) }
                .flatMap { Int($0.dropFirst(name.count)) }
            return request[end.upperBound...].utf8.count >= length ?? 0
        }
    }
}
