import NIOCore
import NIOHTTP1
import NIOPosix
import Synchronization

/// A simulated key endpoint of Apple whose behaviour a test controls.
final class KeyEndpoint: Sendable {
    /// The response to a request.
    enum Behaviour: Sendable {
        /// Responds with 200 and this body.
        case keySet(String)
        /// Responds with this status.
        case status(Int)
        /// Redirects to this URL.
        case redirect(String)
        /// Reads the request and sends no response.
        case silence
    }

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
                    try channel.pipeline.syncOperations.addHandler(Responder(script))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        url = "http://127.0.0.1:\(channel.localAddress?.port ?? 0)/auth/keys"
    }

    /// The number of requests so far.
    var fetches: Int { script.state.withLock { $0.fetches } }

    /// Changes the behaviour.
    func now(_ behaviour: Behaviour) {
        script.state.withLock { $0.behaviour = behaviour }
    }

    private final class Script: Sendable {
        let state: Mutex<(behaviour: Behaviour, fetches: Int)>

        init(_ behaviour: Behaviour) {
            state = Mutex((behaviour, 0))
        }

        func requestReceived() -> Behaviour {
            state.withLock { state in
                state.fetches += 1
                return state.behaviour
            }
        }
    }

    private final class Responder: ChannelInboundHandler {
        typealias InboundIn = HTTPServerRequestPart
        typealias OutboundOut = HTTPServerResponsePart

        private let script: Script

        init(_ script: Script) {
            self.script = script
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            guard case .end = Self.unwrapInboundIn(data) else { return }
            switch script.requestReceived() {
            case .keySet(let text): respond(context, .ok, text)
            case .status(let code): respond(context, HTTPResponseStatus(statusCode: code), "{}")
            case .redirect(let url): respond(context, .found, "", ["location": url])
            case .silence: break
            }
        }

        private func respond(
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
