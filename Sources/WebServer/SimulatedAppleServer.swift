package import Basics
import HTTPTypes
import HummingbirdCore
package import Listening
import NIOCore
package import Telemetry

/// Serves the endpoints of a simulated Apple over HTTP: for development and tests without Apple.
package enum SimulatedAppleServer {
    package struct Exchange: Sendable {
        /// The path, such as `/auth/token`.
        package let path: String
        /// False if the `Content-Type` is not that of a form.
        package let isForm: Bool
        package let body: [UInt8]
    }

    package struct Response: Sendable {
        /// 0: with `isCut`, the connection ends before anything is sent.
        package var status: Int
        package var contentType: String?
        package var retryAfter: Int?
        package var location: String?
        package var body: String
        /// True if the connection is closed in the middle of the body.
        package var isCut = false
        /// The header field `Date`; nil: the time of this machine.
        package var date: WallTime?

        package init(
            status: Int,
            contentType: String?,
            retryAfter: Int? = nil,
            location: String? = nil,
            body: String,
            isCut: Bool = false,
            date: WallTime? = nil
        ) {
            self.status = status
            self.contentType = contentType
            self.retryAfter = retryAfter
            self.location = location
            self.body = body
            self.isCut = isCut
            self.date = date
        }
    }

    /// Ends a connection that is cut.
    private struct Cut: Error {}

    /// More than any request to Apple or to the control.
    private static let largestBody = 65_536

    /// Serves until a graceful shutdown or until it is cancelled.
    ///
    /// - Parameters:
    ///   - onRunning: called with the port once connections are accepted.
    ///   - answer: called for `GET /auth/keys`, `POST /auth/token`, `POST /auth/revoke` and `POST /simulator/…`; nil: 404.
    /// - Throws: `ServerError` if it cannot listen.
    package static func run(
        address: ListenAddress,
        eventLoops: EventLoops,
        log: Log,
        onRunning: @escaping @Sendable (_ port: Int) async -> Void,
        answer: @escaping @Sendable (Exchange) async -> Response?
    ) async throws {
        try await serve(on: address, eventLoops, log, onRunning: onRunning) { request in
            guard accepts(request) else { return HummingbirdCore.Response(status: .notFound) }
            let body: ByteBuffer
            do {
                body = try await request.body.collect(upTo: largestBody)
            } catch is NIOTooManyBytesError {
                return HummingbirdCore.Response(status: .contentTooLarge)
            }
            let type = request.headers[.contentType] ?? ""
            let exchange = Exchange(
                path: request.uri.path,
                isForm: type.lowercased().hasPrefix("application/x-www-form-urlencoded"),
                body: Array(buffer: body)
            )
            guard let response = await answer(exchange) else { return HummingbirdCore.Response(status: .notFound) }
            // The head of a response is sent before its body can fail, so a response without a head ends here.
            if response.isCut && response.status == 0 { throw Cut() }
            return httpResponse(response)
        }
    }

    private static func accepts(_ request: Request) -> Bool {
        switch request.uri.path {
        case "/auth/keys": request.method == .get
        case "/auth/token", "/auth/revoke": request.method == .post
        case let path: request.method == .post && path.hasPrefix("/simulator/")
        }
    }

    private static func httpResponse(_ response: Response) -> HummingbirdCore.Response {
        var headers: HTTPFields = [.server: "Apple", .cacheControl: "no-store"]
        if let type = response.contentType { headers[.contentType] = type }
        if let seconds = response.retryAfter { headers[.retryAfter] = String(seconds) }
        if let location = response.location { headers[.location] = location }
        if let date = response.date { headers[.date] = date.httpDate }
        let bytes = ByteBuffer(string: response.body)
        let body =
            response.isCut
            ? ResponseBody(contentLength: bytes.readableBytes + 1) { writer in
                try await writer.write(bytes)
                throw Cut()
            } : ResponseBody(byteBuffer: bytes)
        return HummingbirdCore.Response(status: .init(code: response.status), headers: headers, body: body)
    }
}
