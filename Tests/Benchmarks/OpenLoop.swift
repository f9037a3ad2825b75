import FoundationEssentials
import NIOCore
import NIOPosix

/// An open loop: requests are sent at fixed times, whether or not earlier ones were answered, as Apple does. A latency
/// counts from the time at which the request was due, so it includes the wait for a free connection.
struct OpenLoop {
    let connections: Int
    /// Requests a second.
    let rate: Double
    let seconds: Int
    /// A token of the caller.
    var bearer: String?

    /// Posts the first lines of the file `bodies`, each once.
    func post(_ bodies: String, to url: String) async throws -> LoadResult {
        let count = Int(rate * Double(seconds))
        let lines = try String(contentsOfFile: bodies, encoding: .utf8).utf8.split(separator: UInt8(ascii: "\n"))
            .prefix(count)
        guard lines.count == count else { throw BenchmarkError("too few tokens: raise --tokens") }
        let target = try LoadTarget(url, bearer: bearer)
        let requests = lines.map { ByteBuffer(string: "\(target.head)\($0.count)\r\n\r\n\(Substring($0))") }
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let loop = group.next()
        let finished = loop.makePromise(of: LoadResult.self)
        let schedule = NIOLoopBoundBox.makeBoxSendingValue(
            Schedule(requests, interval: .nanoseconds(Int64(1e9 / rate)), on: loop, finished),
            eventLoop: loop
        )
        let channels = try await withThrowingTaskGroup(of: (any Channel).self) { tasks in
            for _ in 0..<connections {
                tasks.addTask {
                    try await ClientBootstrap(group: group)
                        .channelOption(.tcpOption(.tcp_nodelay), value: 1)
                        .channelInitializer { channel in
                            channel.eventLoop.makeCompletedFuture {
                                try channel.pipeline.syncOperations.addHandler(Exchange(schedule.value))
                            }
                        }
                        .connect(host: target.host, port: target.port).get()
                }
            }
            return try await tasks.reduce(into: []) { $0.append($1) }
        }
        loop.execute { schedule.value.run() }
        let result = try await finished.futureResult.get()
        for channel in channels {
            // The server may have closed it first.
            try? await channel.close()
        }
        try await group.shutdownGracefully()
        return result
    }

    /// Requests with their due times, idle connections and latencies. Used on one event loop only.
    final class Schedule {
        private let requests: [ByteBuffer]
        private let interval: TimeAmount
        private let loop: any EventLoop
        private let finished: EventLoopPromise<LoadResult>
        private var idle: [Exchange] = []
        private var start = NIODeadline.distantFuture
        private var next = 0
        private var latencies: [Int64] = []
        private var failures = 0
        private var refusals = 0

        init(
            _ requests: [ByteBuffer],
            interval: TimeAmount,
            on loop: any EventLoop,
            _ finished: EventLoopPromise<LoadResult>
        ) {
            self.requests = requests
            self.interval = interval
            self.loop = loop
            self.finished = finished
            latencies.reserveCapacity(requests.count)
        }

        func run() {
            start = .now()
            tick()
        }

        func isFree(_ exchange: Exchange) {
            idle.append(exchange)
            sendDue()
        }

        func answered(due: NIODeadline, isSuccess: Bool) {
            latencies.append((.now() - due).nanoseconds)
            if !isSuccess { refusals += 1 }
            finishIfDone()
        }

        func failed() {
            failures += 1
            finishIfDone()
        }

        private func due(_ index: Int) -> NIODeadline { start + .nanoseconds(interval.nanoseconds * Int64(index)) }

        private func tick() {
            sendDue()
            if next < requests.count {
                loop.assumeIsolated().scheduleTask(deadline: max(due(next), .now() + .microseconds(200))) {
                    self.tick()
                }
            }
        }

        private func sendDue() {
            let now = NIODeadline.now()
            while next < requests.count, due(next) <= now, let exchange = idle.popLast() {
                exchange.send(requests[next], due: due(next))
                next += 1
            }
        }

        private func finishIfDone() {
            guard latencies.count + failures == requests.count else { return }
            finished.succeed(
                LoadResult(
                    latencies: latencies,
                    seconds: Double((.now() - start).nanoseconds) / 1e9,
                    failures: failures,
                    refusals: refusals
                )
            )
        }
    }

    /// One connection, which sends one request at a time.
    final class Exchange: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        private let schedule: Schedule
        private var context: ChannelHandlerContext?
        private var due: NIODeadline?
        private var response = ByteBuffer()

        init(_ schedule: Schedule) { self.schedule = schedule }

        func send(_ request: ByteBuffer, due: NIODeadline) {
            self.due = due
            context?.writeAndFlush(wrapOutboundOut(request), promise: nil)
        }

        func channelActive(context: ChannelHandlerContext) {
            self.context = context
            schedule.isFree(self)
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            var part = unwrapInboundIn(data)
            response.writeBuffer(&part)
            // A response without Content-Length ends the measurement of this connection.
            guard let due, let status = try? response.withUnsafeReadableBytes({ try ClosedLoop.status($0) }) else {
                return
            }
            self.due = nil
            response.clear()
            schedule.answered(due: due, isSuccess: status == 200)
            schedule.isFree(self)
        }

        func channelInactive(context: ChannelHandlerContext) {
            self.context = nil
            if due != nil { schedule.failed() }
        }
    }
}
