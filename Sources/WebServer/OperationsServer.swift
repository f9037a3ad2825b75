import Hummingbird
import HummingbirdCore
package import Listening
import Logging
import NIOCore
package import Telemetry

/// The operations endpoint: `/livez`, `/readyz` and `/metrics`, for GET and HEAD. It listens where only operators and their
/// tools can connect.
package enum OperationsServer {
    /// Serves until a graceful shutdown or until it is cancelled.
    ///
    /// - Parameters:
    ///   - onRunning: called with the port once connections are accepted.
    ///   - readiness: called for each `/readyz`; must return within a second or two.
    /// - Throws: `ServerError` if it cannot listen.
    package static func run(
        address: ListenAddress,
        eventLoops: EventLoops,
        log: Log,
        onRunning: @escaping @Sendable (_ port: Int) async -> Void = { _ in },
        metrics: MetricsRegistry,
        readiness: @escaping @Sendable () async -> [ReadinessCheck]
    ) async throws {
        let router = Router(options: .autoGenerateHeadEndpoints)
        router.add(middleware: ReadingOnly(paths: ["/livez", "/readyz", "/metrics"]))
        router.get("/livez") { _, _ in Self.text("ok\n") }
        router.get("/readyz") { request, _ in
            Self.response(to: await readiness(), isVerbose: request.uri.queryParameters["verbose"] != nil)
        }
        router.get("/metrics") { _, _ in
            Self.text(metrics.prometheusText(), type: "text/plain; version=0.0.4; charset=utf-8")
        }
        try await serve(router, on: address, eventLoops, log) { port in
            let place = ListenAddress(host: address.host, port: port)
            log.info("operations endpoint is open", ["address": "\(place)"])
            await onRunning(port)
        }
    }

    /// 200 or 503, with one line for each check if verbose or if one failed.
    private static func response(to checks: [ReadinessCheck], isVerbose: Bool) -> Response {
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

/// A condition for accepting notifications durably.
package struct ReadinessCheck: Sendable, Equatable {
    /// A short name, such as `database`.
    package let name: String
    package let isReady: Bool
    /// One line: why it is not ready, or other useful information.
    package let detail: String?

    package init(name: String, isReady: Bool, detail: String? = nil) {
        self.name = name
        self.isReady = isReady
        self.detail = detail
    }

    /// `[+]database ok`, the format of Kubernetes.
    fileprivate var line: String {
        "\(isReady ? "[+]" : "[-]")\(name) \(isReady ? "ok" : "failed")\(detail.map { ": \($0)" } ?? "")"
    }
}

/// Responds 405 to other methods than GET and HEAD on known paths.
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

/// Publishes a key set at the path where Apple publishes its own: for development without Apple.
package enum KeySetServer {
    package static let path = "/auth/keys"

    /// Serves a JSON Web Key Set until a graceful shutdown or until it is cancelled.
    ///
    /// - Parameter onRunning: called with the port once connections are accepted.
    /// - Throws: `ServerError` if it cannot listen.
    package static func run(
        address: ListenAddress,
        keySet: [UInt8],
        eventLoops: EventLoops,
        log: Log,
        onRunning: @escaping @Sendable (_ port: Int) async -> Void
    ) async throws {
        let router = Router()
        let body = ByteBuffer(bytes: keySet)
        router.get("/auth/keys") { _, _ in
            Response(
                status: .ok,
                headers: [.contentType: "application/json;charset=UTF-8"],
                body: ResponseBody(byteBuffer: body)
            )
        }
        try await serve(router, on: address, eventLoops, log, onRunning: onRunning)
    }
}

/// Serves few requests with Hummingbird's router.
func serve(
    _ router: Router<BasicRequestContext>,
    on address: ListenAddress,
    _ eventLoops: EventLoops,
    _ log: Log,
    onRunning: @escaping @Sendable (_ port: Int) async -> Void
) async throws {
    let quiet = log.quieter(than: .warning).logger
    let application = Application(
        router: router,
        server: .http1(configuration: .init(idleTimeout: .seconds(75))),
        configuration: ApplicationConfiguration(
            address: .hostname(address.host, port: address.port),
            availableConnectionsDelegate: .maximum(256, logger: quiet)
        ),
        onServerRunning: { await onRunning($0.localAddress?.port ?? address.port) },
        eventLoopGroupProvider: .shared(eventLoops.group),
        logger: quiet
    )
    do {
        try await application.run()
    } catch let error as IOError {
        throw ServerError.listening(on: address, error)
    }
}
