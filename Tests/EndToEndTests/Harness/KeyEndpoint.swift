import NIOCore
import NIOHTTP1
import NIOPosix
import Synchronization

/// Stands in for Apple's key endpoint, and does what a test tells it to.
final class KeyEndpoint: Sendable {
    /// What it does with a request.
    enum Behaviour: Sendable {
        /// Answers 200 with this body.
        case keySet(String)
        /// Answers with this status.
        case status(Int)
        /// Redirects there.
        case redirect(String)
        /// Takes the request and says nothing.
        case silence
    }

    /// Where it is.
    let url: String
    private let script: Script
    private let channel: any Channel

    /// Runs `body` with an endpoint that serves this key set.
    static func with<R>(_ keySet: String, _ body: (KeyEndpoint) async throws -> R) async throws -> R {
        let endpoint = try await KeyEndpoint(.keySet(keySet))
        do {
            let result = try await body(endpoint)
            try await endpoint.channel.close()
            return result
        } catch {
            try await endpoint.channel.close()
            throw error
        }
    }

    private init(_ behaviour: Behaviour) async throws {
        let script = Script(behaviour)
        self.script = script
        channel = try await ServerBootstrap(group: Web.eventLoops)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.configureHTTPServerPipeline()
                    try channel.pipeline.syncOperations.addHandler(Answering(script))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        url = "http://127.0.0.1:\(channel.localAddress?.port ?? 0)/auth/keys"
    }

    /// How often it was asked.
    var fetches: Int { script.state.withLock { $0.fetches } }

    /// What it does from here on.
    func now(_ behaviour: Behaviour) {
        script.state.withLock { $0.behaviour = behaviour }
    }

    private final class Script: Sendable {
        let state: Mutex<(behaviour: Behaviour, fetches: Int)>

        init(_ behaviour: Behaviour) {
            state = Mutex((behaviour, 0))
        }

        func asked() -> Behaviour {
            state.withLock { state in
                state.fetches += 1
                return state.behaviour
            }
        }
    }

    private final class Answering: ChannelInboundHandler {
        typealias InboundIn = HTTPServerRequestPart
        typealias OutboundOut = HTTPServerResponsePart

        private let script: Script

        init(_ script: Script) {
            self.script = script
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            guard case .end = Self.unwrapInboundIn(data) else { return }
            switch script.asked() {
            case .keySet(let text): answer(context, .ok, text)
            case .status(let code): answer(context, HTTPResponseStatus(statusCode: code), "{}")
            case .redirect(let url): answer(context, .found, "", ["location": url])
            case .silence: break
            }
        }

        private func answer(
            _ context: ChannelHandlerContext,
            _ status: HTTPResponseStatus,
            _ body: String,
            _ fields: HTTPHeaders = [:]
        ) {
            var fields = fields
            fields.add(name: "content-length", value: "\(body.utf8.count)")
            fields.add(name: "content-type", value: "application/json")
            let head = HTTPResponseHead(version: .http1_1, status: status, headers: fields)
            context.write(Self.wrapOutboundOut(.head(head)), promise: nil)
            context.write(Self.wrapOutboundOut(.body(.byteBuffer(ByteBuffer(string: body)))), promise: nil)
            context.writeAndFlush(Self.wrapOutboundOut(.end(nil)), promise: nil)
        }
    }
}
