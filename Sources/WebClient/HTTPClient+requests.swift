import AsyncHTTPClient
import Basics
import NIOCore
import NIOHTTP1
import NIOSSL

/// The User-Agent of requests for key sets, and of notifications that siwad sends itself.
func notificationUserAgent(_ version: String) -> String {
    "siwad/\(version) (Sign in with Apple notification endpoint)"
}

extension HTTPClient.Configuration {
    /// HTTP/1.1 without redirects and without retries: the caller decides whether to try again.
    static var singleAttempt: HTTPClient.Configuration {
        var configuration = HTTPClient.Configuration()
        configuration.tlsConfiguration = .makeClientConfiguration()
        configuration.redirectConfiguration = .disallow
        configuration.connectionPool.retryConnectionEstablishment = false
        configuration.httpVersion = .http1Only
        // Without it, each request makes a span that nothing reads, which costs a tenth of the request.
        configuration.tracing.tracer = nil
        configuration.http1_1ConnectionDebugInitializer = { channel in
            channel.eventLoop.makeCompletedFuture { try StatusCheck.add(to: channel) }
        }
        return configuration
    }
}

/// Refuses answers with a status below 100, which HTTP does not have (RFC 9110 §15). AsyncHTTPClient takes their head for an
/// interim one, and stops the process when their end arrives.
final class StatusCheck: ChannelInboundHandler {
    typealias InboundIn = HTTPClientResponsePart
    typealias InboundOut = HTTPClientResponsePart

    private var isRefused = false

    private init() {}

    /// Adds the check to a connection that has AsyncHTTPClient's handlers. Call it on the connection's event loop.
    static func add(to channel: any Channel) throws {
        let pipeline = channel.pipeline.syncOperations
        let decoder = try pipeline.handler(type: ByteToMessageHandler<HTTPResponseDecoder>.self)
        try pipeline.addHandler(StatusCheck(), position: .after(decoder))
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        if case .head(let head) = Self.unwrapInboundIn(data), head.status.code < 100 {
            isRefused = true
            context.fireErrorCaught(HTTPParserError.invalidStatus)
            context.close(promise: nil)
        }
        if !isRefused { context.fireChannelRead(data) }
    }
}

extension HTTPClient {
    /// Sends a request, and returns what `reader` makes of the response.
    ///
    /// The reader is called on the event loop of the connection. The client's other interface starts several tasks for a request,
    /// which cost more than the request.
    ///
    /// - Parameter deadline: for head and body.
    func result<Reader: HTTPClientResponseDelegate>(
        of request: Request,
        _ reader: Reader,
        deadline: NIODeadline
    ) async throws -> Reader.Response {
        let task = execute(request: request, delegate: reader, deadline: deadline)
        return try await withTaskCancellationHandler {
            try await task.get()
        } onCancel: {
            task.fail(reason: CancellationError())
        }
    }
}

/// Runs `work` with an HTTP client of its own.
///
/// - Parameter deadline: for all of `work`; `nil` for none. The client's own timeout ends with the head of a response, but
///   this one also covers the body.
/// - Throws: the errors of `work`; `HTTPClientError.deadlineExceeded`.
func withHTTPClient<Value: Sendable>(
    _ configuration: HTTPClient.Configuration,
    on eventLoopGroup: any EventLoopGroup,
    deadline: Duration?,
    _ work: @escaping @Sendable (HTTPClient) async throws -> Value
) async throws -> Value {
    let client = HTTPClient(eventLoopGroupProvider: .shared(eventLoopGroup), configuration: configuration)
    // Fails only if requests are pending, and `work` has ended.
    return try await withCleanup({ try? await client.shutdown() }) {
        try await withThrowingTaskGroup(of: Value.self) { group in
            group.addTask { try await work(client) }
            if let deadline {
                group.addTask {
                    try await Task.sleep(for: deadline)
                    throw HTTPClientError.deadlineExceeded
                }
            }
            defer { group.cancelAll() }
            guard let value = try await group.next() else { throw CancellationError() }
            return value
        }
    }
}
