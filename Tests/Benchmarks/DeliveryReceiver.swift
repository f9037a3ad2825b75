import Basics
import NIOCore
import NIOHTTP1
import NIOPosix
import Synchronization

/// A receiver of webhooks that does little more than to note when each one arrived. It verifies no signatures.
final class DeliveryReceiver: Sendable {
    enum Behaviour {
        case accepts
        case answers503
        case neverAnswers
    }

    private struct State {
        var count = 0
        var first: ContinuousClock.Instant?
        var last: ContinuousClock.Instant?
        var delays: [Int64] = []
    }

    let url: String
    /// The time of each arrival.
    let arrivals: AsyncStream<ContinuousClock.Instant>
    private let arrival: AsyncStream<ContinuousClock.Instant>.Continuation
    private let state = Mutex(State())

    /// Runs `body` with a receiver on a thread of its own.
    static func with<R>(
        port: Int,
        _ behaviour: Behaviour = .accepts,
        _ body: (DeliveryReceiver) async throws -> R
    ) async throws -> R {
        let receiver = DeliveryReceiver(port: port)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let server = try await ServerBootstrap(group: group)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.configureHTTPServerPipeline(withPipeliningAssistance: false)
                    try channel.pipeline.syncOperations.addHandler(Handler(receiver, behaviour))
                }
            }
            .bind(host: "127.0.0.1", port: port).get()
        let result: Result<R, any Error>
        do {
            result = .success(try await body(receiver))
        } catch {
            result = .failure(error)
        }
        // Ends its connections too.
        try await server.close()
        try await group.shutdownGracefully()
        return try result.get()
    }

    private init(port: Int) {
        url = "http://127.0.0.1:\(port)/webhooks"
        (arrivals, arrival) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    var count: Int { state.withLock { $0.count } }

    /// Arrivals a second, from the first to the last.
    var rate: Double {
        state.withLock { state in
            guard let first = state.first, let last = state.last, last > first else { return 0 }
            return Double(state.count) / ((last - first) / .seconds(1))
        }
    }

    /// Milliseconds from the recording of a change to the arrival of its event.
    var delays: (median: Double, p99: Double) {
        let delays = state.withLock { $0.delays.sorted() }
        guard !delays.isEmpty else { return (0, 0) }
        return (Double(delays[delays.count / 2]) / 1e3, Double(delays[delays.count * 99 / 100]) / 1e3)
    }

    /// Waits until a number of events has arrived.
    func received(_ count: Int, within limit: Duration) async throws {
        let deadline = ContinuousClock.now + limit
        while self.count < count {
            guard .now < deadline else {
                throw BenchmarkError("\(self.count) of \(count) events arrived within \(limit): see deliveries list")
            }
            try await Task.sleep(for: .milliseconds(20))
        }
    }

    /// - Parameter recordedAt: the time in the body.
    fileprivate func received(recordedAt: WallTime?) {
        let (now, time) = (ContinuousClock.now, WallTime.now())
        state.withLock { state in
            state.count += 1
            state.first = state.first ?? now
            state.last = now
            if let recordedAt { state.delays.append(time.microseconds - recordedAt.microseconds) }
        }
        arrival.yield(now)
    }

    private final class Handler: ChannelInboundHandler {
        typealias InboundIn = HTTPServerRequestPart
        typealias OutboundOut = HTTPServerResponsePart

        private static let member = Array(#""recorded_at":""#.utf8)

        private let receiver: DeliveryReceiver
        private let behaviour: Behaviour
        private var recordedAt: WallTime?

        init(_ receiver: DeliveryReceiver, _ behaviour: Behaviour) {
            self.receiver = receiver
            self.behaviour = behaviour
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            switch unwrapInboundIn(data) {
            case .head: recordedAt = nil
            case .body(let buffer):
                // An event is smaller than what arrives at a time.
                let bytes = buffer.readableBytesView
                guard let place = bytes.firstRange(of: Self.member) else { return }
                let text = bytes[place.upperBound...].prefix { $0 != UInt8(ascii: "\"") }
                recordedAt = WallTime(iso8601: String(decoding: text, as: UTF8.self))
            case .end: answer(context)
            }
        }

        private func answer(_ context: ChannelHandlerContext) {
            receiver.received(recordedAt: recordedAt)
            let status: HTTPResponseStatus
            switch behaviour {
            case .accepts: status = .ok
            case .answers503: status = .serviceUnavailable
            case .neverAnswers: return
            }
            let head = HTTPResponseHead(version: .http1_1, status: status, headers: ["content-length": "0"])
            context.write(wrapOutboundOut(.head(head)), promise: nil)
            context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
        }
    }
}
