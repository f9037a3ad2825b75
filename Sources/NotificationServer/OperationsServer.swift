import Hummingbird
import Logging
import NIOCore
package import Telemetry

/// The operations endpoint: `/livez`, `/readyz` and `/metrics`, for GET and HEAD. It listens where only operators and their tools reach.
package struct OperationsServer: Sendable {
    private let address: ListenAddress
    private let eventLoops: EventLoops
    private let log: Log
    private let onRunning: @Sendable (Int) async -> Void
    private let metrics: MetricsRegistry
    private let readiness: @Sendable () async -> [ReadinessCheck]

    /// A server that listens once it runs.
    ///
    /// - Parameters:
    ///   - onRunning: called with the port as soon as connections are accepted.
    ///   - readiness: asked at each `/readyz`; must answer within a second or two.
    package init(
        address: ListenAddress,
        eventLoops: EventLoops,
        log: Log,
        onRunning: @escaping @Sendable (_ port: Int) async -> Void = { _ in },
        metrics: MetricsRegistry,
        readiness: @escaping @Sendable () async -> [ReadinessCheck]
    ) {
        self.address = address
        self.eventLoops = eventLoops
        self.log = log
        self.onRunning = onRunning
        self.metrics = metrics
        self.readiness = readiness
    }

    /// Serves until a graceful shutdown or until it is cancelled.
    ///
    /// - Throws: `ServerError` when it can't listen.
    package func run() async throws {
        let router = Router(options: .autoGenerateHeadEndpoints)
        router.add(middleware: ReadingOnly(paths: ["/livez", "/readyz", "/metrics"]))
        router.get("/livez") { _, _ in Self.text("ok\n") }
        router.get("/readyz") { request, _ in
            let checks = await readiness()
            return Self.answer(checks, isVerbose: request.uri.queryParameters["verbose"] != nil)
        }
        router.get("/metrics") { _, _ in
            Self.text(metrics.prometheusText(), type: "text/plain; version=0.0.4; charset=utf-8")
        }
        try await RoutedServer(address: address, eventLoops: eventLoops, log: log) { port in
            log.info(
                "operations endpoint is open",
                ["address": "\(ListenAddress(host: address.host, port: port))"]
            )
            await onRunning(port)
        }.run(router)
    }

    /// 200 or 503; each check on its line when someone wants to know or must know.
    static func answer(_ checks: [ReadinessCheck], isVerbose: Bool) -> Response {
        let isReady = checks.allSatisfy(\.isReady)
        guard isVerbose || !isReady else { return text("ok\n") }
        let lines = checks.map { $0.line + "\n" }.joined()
        return text(
            "\(lines)readyz check \(isReady ? "passed" : "failed")\n",
            status: isReady ? .ok : .serviceUnavailable
        )
    }

    private static func text(
        _ text: String,
        type: String = "text/plain; charset=utf-8",
        status: HTTPResponse.Status = .ok
    ) -> Response {
        Response(
            status: status,
            headers: [.contentType: type, .cacheControl: "no-store"],
            body: ResponseBody(byteBuffer: ByteBuffer(string: text))
        )
    }
}

/// Answers 405 where there is something to read and somebody wants to do something else.
private struct ReadingOnly: RouterMiddleware {
    let paths: Set<String>

    @concurrent func handle(
        _ request: Request,
        context: BasicRequestContext,
        next: @concurrent (Request, BasicRequestContext) async throws -> Response
    ) async throws -> Response {
        let isReading = request.method == .get || request.method == .head
        guard isReading || !paths.contains(request.uri.path) else {
            return Response(status: .methodNotAllowed, headers: [.allow: "GET, HEAD", .cacheControl: "no-store"])
        }
        return try await next(request, context)
    }
}
