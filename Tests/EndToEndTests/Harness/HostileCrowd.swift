import Glibc
import NIOCore
import NIOPosix
import Synchronization

/// Thousands of connections that try to exhaust the server. Each reconnects when the server closes it.
final class HostileCrowd: Sendable {
    /// The behaviour of each connection.
    enum Kind: String, CaseIterable, Sendable {
        /// Sends nothing.
        case idle = "silent"
        /// Sends its head a byte a second.
        case slowHead = "with a slow head"
        /// Sends its body a byte a second.
        case slowBody = "with a slow body"
        /// Sends bursts of requests without waiting for responses.
        case pipelining = "with bursts of requests"
        /// Closes in the middle of a request.
        case leaving = "that leave early"
    }

    private let kind: Kind
    private let host: String
    private let port: Int
    private let group: MultiThreadedEventLoopGroup
    private let count: Mutex<(open: Int, made: Int)> = Mutex((0, 0))
    private let isOver = Atomic<Bool>(false)

    /// Runs `body` while nine of ten or more are connected.
    static func with<R>(
        _ count: Int,
        _ kind: Kind,
        at url: String,
        _ body: (HostileCrowd) async throws -> R
    ) async throws -> R {
        let address = url.drop { $0 != "/" }.dropFirst(2).prefix { $0 != "/" }.split(separator: ":")
        let crowd = HostileCrowd(kind, String(address[0]), Int(address[1]) ?? 0)
        for _ in 0..<count { crowd.connect(after: .milliseconds(Int64.random(in: 0..<2_000))) }
        let result: Result<R, any Error>
        do {
            try await eventually("the connections to be open", within: .seconds(120)) { crowd.open >= count * 9 / 10 }
            result = .success(try await body(crowd))
        } catch {
            result = .failure(error)
        }
        crowd.isOver.store(true, ordering: .relaxed)
        try await crowd.group.shutdownGracefully()
        return try result.get()
    }

    /// Raises this process's limit on open files to its maximum. Returns false if that is too low.
    static func hasRoom(for count: Int) -> Bool {
        var limit = rlimit()
        guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return false }
        limit.rlim_cur = limit.rlim_max
        _ = setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
        return limit.rlim_cur > rlim_t(count + 1_000)
    }

    private init(_ kind: Kind, _ host: String, _ port: Int) {
        self.kind = kind
        self.host = host
        self.port = port
        group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    }

    /// The number of open connections.
    var open: Int { count.withLock { $0.open } }
    /// The number of connections made so far.
    var made: Int { count.withLock { $0.made } }

    private func connect(after delay: TimeAmount) {
        let loop = group.next()
        loop.scheduleTask(in: delay) {
            guard !self.isOver.load(ordering: .relaxed) else { return }
            ClientBootstrap(group: loop)
                .channelInitializer { channel in
                    channel.eventLoop.makeCompletedFuture {
                        try channel.pipeline.syncOperations.addHandler(Behaviour(self.kind))
                    }
                }
                .connect(host: self.host, port: self.port)
                .whenComplete { result in
                    switch result {
                    case .success(let channel):
                        self.count.withLock { $0 = ($0.open + 1, $0.made + 1) }
                        channel.closeFuture.whenComplete { _ in
                            self.count.withLock { $0.open -= 1 }
                            self.connect(after: .milliseconds(Int64.random(in: 0..<500)))
                        }
                    case .failure:
                        self.connect(after: .milliseconds(Int64.random(in: 500..<1_500)))
                    }
                }
        }
    }

    private final class Behaviour: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        private static let line = "POST /apple/notifications HTTP/1.1\r\nHost: a\r\n"
        private static let burst = String(repeating: line + "Content-Length: 9\r\n\r\n{\"a\":\"b\"}", count: 16)
        private let kind: Kind

        init(_ kind: Kind) { self.kind = kind }

        func channelActive(context: ChannelHandlerContext) {
            switch kind {
            case .idle: break
            case .slowHead:
                send(Self.line + "X: ", context)
                `repeat`(every: .seconds(1), context) { "x" }
            case .slowBody:
                send(Self.line + "Content-Length: 60000\r\n\r\n", context)
                `repeat`(every: .seconds(1), context) { "x" }
            case .pipelining:
                send(Self.burst, context)
                `repeat`(every: .seconds(10), context) { Self.burst }
            case .leaving:
                send(Self.line + "Content-Length: 1000\r\n\r\nhalf of", context)
                let channel = context.channel
                context.eventLoop.scheduleTask(in: .milliseconds(Int64.random(in: 0..<5_000))) {
                    channel.close(promise: nil)
                }
            }
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) {
            context.close(promise: nil)
        }

        private func send(_ text: String, _ context: ChannelHandlerContext) {
            context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: text)), promise: nil)
        }

        private func `repeat`(
            every delay: TimeAmount,
            _ context: ChannelHandlerContext,
            _ text: @escaping @Sendable () -> String
        ) {
            let channel = context.channel
            let task = context.eventLoop.scheduleRepeatedTask(initialDelay: delay, delay: delay) { _ in
                channel.writeAndFlush(ByteBuffer(string: text()), promise: nil)
            }
            channel.closeFuture.whenComplete { _ in task.cancel() }
        }
    }
}
