import AsyncHTTPClient
import Basics
import Glibc
package import NIOCore
import NIOHTTP1

/// A client of siwad's own application endpoint.
package struct ApplicationClient: Sendable {
    package struct Response: Sendable, Equatable {
        package let status: Int
        package let body: [UInt8]
    }

    /// Longer than the deadline of the endpoint.
    private static let deadline = Duration.seconds(20)
    private static let largestResponse = 65_536

    /// Without a slash at the end.
    private let base: String
    private let address: String
    private let bearer: String?

    /// - Parameters:
    ///   - address: `unix:/path`, or the base of a URL: `https:`, or `http:` to a loopback address, because the request has
    ///     the caller's token and what the device got from Apple.
    ///   - bearer: the caller's token.
    /// - Throws: `invalidURL`.
    package init(address: String, bearer: String?) throws(WebClientError) {
        if address.hasPrefix("unix:/") {
            // The URL has the path in the place of the host, where @ and : have a meaning.
            base = "http+unix://\(String(address.dropFirst("unix:".count)).percentEncoded)"
        } else if address.hasPrefix("unix:") {
            throw WebClientError(.invalidURL, "the path of a socket begins with a slash: write unix:/path")
        } else if !address.contains("://") {
            throw WebClientError(.invalidURL, "it is not a URL: write unix:/path for a socket, or https://host")
        } else {
            let url = try EndpointURL(parsing: address)
            guard url.isEncrypted || IPAddress.isLoopback(host: url.host) else {
                throw WebClientError(.invalidURL, "http: is for loopback addresses only")
            }
            base = url.text.hasSuffix("/") ? String(url.text.dropLast()) : url.text
        }
        self.address = address
        self.bearer = bearer
    }

    /// Sends a request to sign in.
    ///
    /// - Throws: `unreachable`, `timedOut`, `tooLarge`.
    package func signIn(
        _ body: [UInt8],
        idempotencyKey: String?,
        on eventLoopGroup: any EventLoopGroup
    ) async throws(WebClientError) -> Response {
        var request = HTTPClientRequest(url: base + "/v1/sign-in")
        request.method = .POST
        request.headers.add(name: "Content-Type", value: "application/json")
        if let bearer { request.headers.add(name: "Authorization", value: "Bearer \(bearer)") }
        if let idempotencyKey { request.headers.add(name: "Idempotency-Key", value: idempotencyKey) }
        request.body = .bytes(ByteBuffer(bytes: body))
        do {
            return try await withHTTPClient(.singleAttempt, on: eventLoopGroup, deadline: Self.deadline) {
                [request] client in
                let response = try await client.execute(request, timeout: TimeAmount(Self.deadline))
                let body = try await response.body.collect(upTo: Self.largestResponse)
                return Response(status: Int(response.status.code), body: Array(buffer: body))
            }
        } catch let error as HTTPClientError where PlainCause.timeouts.contains(error) {
            throw WebClientError(.timedOut, "\(address) did not answer in time; see its log")
        } catch is NIOTooManyBytesError {
            throw WebClientError(.tooLarge, "\(address) answers too much: it is not siwad")
        } catch {
            let cause = PlainCause.words(for: error, from: address)
            let isForbidden = (error as? IOError)?.errnoCode == EACCES
            let step =
                isForbidden ? "use an account of the socket's group" : "start siwad serve, or correct --to"
            throw WebClientError(.unreachable, "no siwad answers at \(address): \(cause); \(step)")
        }
    }
}
