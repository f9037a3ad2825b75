import Basics
import JOSE
import NIOCore
import NIOHTTP1
import NIOPosix
import Synchronization
import Webhooks

/// The application of `siwad dev`: an endpoint in this process that verifies what it gets.
final class DemonstrationReceiver: Sendable {
    struct Message: Sendable {
        /// nil if the signature is not that of the endpoint's secret.
        let id: String?
        let change: DemonstrationDeliveries.Change
        /// False if the receiver answered 500.
        let isAccepted: Bool
        let arrivedAt: ContinuousClock.Instant
    }

    private struct State {
        /// nil: they are not collected.
        var messages: [Message]? = []
        /// The person whose next message is answered 500.
        var refused: String?
        var channel: (any Channel)?
    }

    /// The secret that only this process and the database know.
    let secret: WebhookSecret
    private let verifier: WebhookVerifier
    private let state = Mutex(State())

    init() throws {
        secret = try WebhookSecret.newHMAC()
        verifier = try WebhookVerifier([secret.receiverText])
    }

    /// Listens on a loopback address.
    ///
    /// - Returns: the URL.
    func start(on group: any EventLoopGroup) async throws -> String {
        let channel = try await ServerBootstrap(group: group)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.configureHTTPServerPipeline()
                    try channel.pipeline.syncOperations.addHandler(Connection(self))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        state.withLock { $0.channel = channel }
        return "http://127.0.0.1:\(channel.localAddress?.port ?? 0)/hooks/siwa"
    }

    func close() async {
        // Fails only if it is closed already.
        try? await state.withLock { $0.channel }?.close()
    }

    var messages: [Message] { state.withLock { $0.messages ?? [] } }

    /// Answers 500 to the next message about a person. The queue may contain messages about other people, of an earlier run.
    func refuseOnce(subject: String) { state.withLock { $0.refused = subject } }

    /// Drops the messages, and collects none from now on: `siwad dev` serves without an end.
    func stopCollecting() { state.withLock { $0.messages = nil } }

    /// - Parameter header: returns the value of a header.
    /// - Returns: false if the answer is 500.
    func received(_ body: [UInt8], header: (String) -> String?) -> Bool {
        let json = try? JSONValue(parsing: body)
        let subject = json?["data"]?["sub"]?.string ?? ""
        // nil is reported as not verified.
        let id = try? verifier.verify(body: body, at: .now(), header: header)
        return state.withLock { state in
            let isAccepted = state.refused != subject
            if !isAccepted { state.refused = nil }
            state.messages?.append(
                Message(
                    id: id,
                    change: .init(subject: subject, type: json?["type"]?.string ?? "unknown"),
                    isAccepted: isAccepted,
                    arrivedAt: .now
                )
            )
            return isAccepted
        }
    }

    private final class Connection: ChannelInboundHandler {
        typealias InboundIn = HTTPServerRequestPart
        typealias OutboundOut = HTTPServerResponsePart

        private let receiver: DemonstrationReceiver
        private var head: HTTPRequestHead?
        private var body: [UInt8] = []

        init(_ receiver: DemonstrationReceiver) { self.receiver = receiver }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            switch Self.unwrapInboundIn(data) {
            case .head(let head): (self.head, body) = (head, [])
            // siwad sends a kilobyte.
            case .body(let part): if body.count < 65_536 { body += Array(buffer: part) }
            case .end:
                guard let head else { return }
                let isAccepted = receiver.received(body) { head.headers.first(name: $0) }
                let status: HTTPResponseStatus = isAccepted ? .noContent : .internalServerError
                let fields: HTTPHeaders = isAccepted ? [:] : ["Content-Length": "0"]
                let answer = HTTPResponseHead(version: .http1_1, status: status, headers: fields)
                context.write(Self.wrapOutboundOut(.head(answer)), promise: nil)
                context.writeAndFlush(Self.wrapOutboundOut(.end(nil)), promise: nil)
            }
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
    }
}
