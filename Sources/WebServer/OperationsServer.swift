import HTTPTypes
import HummingbirdCore
package import Listening
package import NIOCore
package import Telemetry

/// The operations endpoint: `/livez`, `/readyz` and `/metrics`, for GET and HEAD. It listens where only operators and their
/// tools can connect.
package enum OperationsServer {
    /// Serves until a graceful shutdown or until it is cancelled.
    ///
    /// - Parameters:
    ///   - connectionLimit: at this number of connections, silent ones are closed to make room.
    ///   - idleDeadline: for silence between requests, and for a client to read a response.
    ///   - onRunning: called with the port once connections are accepted.
    ///   - readiness: called for each `/readyz`; must return within a second or two.
    /// - Throws: `ServerError` if it cannot listen.
    package static func run(
        address: ListenAddress,
        eventLoops: EventLoops,
        log: Log,
        connectionLimit: Int = OpenFileLimit.fewConnections,
        idleDeadline: TimeAmount = .seconds(75),
        onRunning: @escaping @Sendable (_ port: Int) async -> Void = { _ in },
        metrics: MetricsRegistry,
        readiness: @escaping @Sendable () async -> [ReadinessCheck]
    ) async throws {
        try await serve(on: address, eventLoops, log, connectionLimit: connectionLimit, idleDeadline: idleDeadline) {
            port in
            let place = ListenAddress(host: address.host, port: port)
            log.info("operations endpoint is open", ["address": "\(place)"])
            await onRunning(port)
        } answer: { request in
            let path = request.uri.path
            guard ["/livez", "/readyz", "/metrics"].contains(path) else { return empty(.notFound) }
            guard request.method == .get || request.method == .head else {
                return empty(.methodNotAllowed, [.allow: "GET, HEAD"])
            }
            return switch path {
            case "/livez": text("ok\n")
            case "/readyz": response(to: await readiness(), isVerbose: request.uri.queryParameters["verbose"] != nil)
            default: text(metrics.prometheusText(), type: "text/plain; version=0.0.4; charset=utf-8")
            }
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

    private static func empty(_ status: HTTPResponse.Status, _ fields: HTTPFields = [:]) -> Response {
        var fields = fields
        fields[.cacheControl] = "no-store"
        return Response(status: status, headers: fields)
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
        let body = ByteBuffer(bytes: keySet)
        try await serve(on: address, eventLoops, log, onRunning: onRunning) { request in
            guard request.uri.path == path, request.method == .get else { return Response(status: .notFound) }
            return Response(
                status: .ok,
                headers: [.contentType: "application/json;charset=UTF-8"],
                body: ResponseBody(byteBuffer: body)
            )
        }
    }
}
