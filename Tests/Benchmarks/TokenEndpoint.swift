import NIOCore
import NIOHTTP1
import NIOPosix

/// A token endpoint that does little more than to find the prepared answer to a code: `siwad simulate apple` signs a token for
/// each answer, which takes longer than all work of siwad.
enum TokenEndpoint {
    static let port = 18_097
    static var url: String { "http://127.0.0.1:\(port)" }

    /// Runs `body` with the endpoint on a thread of its own.
    static func with<R>(_ answers: [String], _ body: () async throws -> R) async throws -> R {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let server = try await ServerBootstrap(group: group)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.configureHTTPServerPipeline(withPipeliningAssistance: false)
                    try channel.pipeline.syncOperations.addHandler(Handler(answers))
                }
            }
            .bind(host: "127.0.0.1", port: port).get()
        let result: Result<R, any Error>
        do {
            result = .success(try await body())
        } catch {
            result = .failure(error)
        }
        try await server.close()
        try await group.shutdownGracefully()
        return try result.get()
    }

    private final class Handler: ChannelInboundHandler {
        typealias InboundIn = HTTPServerRequestPart
        typealias OutboundOut = HTTPServerResponsePart

        private static let field = Array("code=c".utf8)

        private let answers: [String]
        private var body = ByteBuffer()

        init(_ answers: [String]) {
            self.answers = answers
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            switch unwrapInboundIn(data) {
            case .head: body.clear()
            case .body(var part): body.writeBuffer(&part)
            case .end: answer(context)
            }
        }

        private func answer(_ context: ChannelHandlerContext) {
            let bytes = body.readableBytesView
            let digits = bytes.firstRange(of: Self.field).map {
                bytes[$0.upperBound...].prefix { $0 != UInt8(ascii: ".") }
            }
            let number = digits.flatMap { Int(String(decoding: $0, as: UTF8.self)) } ?? -1
            let text = answers.indices.contains(number) ? answers[number] : #"{"error":"invalid_grant"}"#
            let head = HTTPResponseHead(
                version: .http1_1,
                status: answers.indices.contains(number) ? .ok : .badRequest,
                headers: [
                    "content-type": "application/json;charset=ISO-8859-1", "content-length": "\(text.utf8.count)",
                ]
            )
            context.write(wrapOutboundOut(.head(head)), promise: nil)
            context.write(wrapOutboundOut(.body(.byteBuffer(ByteBuffer(string: text)))), promise: nil)
            context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
        }
    }
}
