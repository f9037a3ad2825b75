import AsyncHTTPClient
package import NIOCore
import NIOHTTP1
import NIOSSL

/// Checks whether a server of this machine responds.
package enum LocalProbe {
    package struct Response: Sendable, Equatable {
        package let status: Int
        package let allow: String?
        /// At most 64 KiB.
        package let body: String
        /// From the start of the request to the last byte of the response.
        package let latency: Duration
    }

    /// More than any response of siwad to GET.
    static let largestResponse = 65_536

    /// Sends GET. The certificate is not verified, because it names the host that Apple calls and this connection stays on
    /// this machine.
    ///
    /// - Parameter deadline: for the whole response.
    /// - Throws: `unreachable`, `timedOut`, `tooLarge`.
    package static func get(
        _ url: String,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        deadline: Duration = .seconds(5)
    ) async throws(WebClientError) -> Response {
        var request = HTTPClientRequest(url: url)
        request.headers.add(name: "User-Agent", value: notificationUserAgent(version))
        return try await send(request, eventLoopGroup, deadline)
    }

    /// Sends POST with a JSON text.
    ///
    /// - Throws: as ``get(_:version:eventLoopGroup:deadline:)``.
    package static func post(
        _ url: String,
        json: String,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        deadline: Duration = .seconds(30)
    ) async throws(WebClientError) -> Response {
        var request = HTTPClientRequest(url: url)
        request.method = .POST
        request.headers.add(name: "User-Agent", value: notificationUserAgent(version))
        request.headers.add(name: "Content-Type", value: "application/json")
        request.body = .bytes(ByteBuffer(string: json))
        return try await send(request, eventLoopGroup, deadline)
    }

    private static func send(
        _ request: HTTPClientRequest,
        _ eventLoopGroup: any EventLoopGroup,
        _ deadline: Duration
    ) async throws(WebClientError) -> Response {
        let url = request.url
        var configuration = HTTPClient.Configuration.singleAttempt
        configuration.tlsConfiguration?.certificateVerification = .none
        configuration.timeout = .init(connect: TimeAmount(deadline))
        do {
            return try await withHTTPClient(configuration, on: eventLoopGroup, deadline: deadline) { client in
                let start = ContinuousClock.now
                let response = try await client.execute(request, timeout: TimeAmount(deadline))
                let body = try await response.body.collect(upTo: largestResponse)
                return Response(
                    status: Int(response.status.code),
                    allow: response.headers.first(name: "Allow"),
                    body: String(buffer: body),
                    latency: .now - start
                )
            }
        } catch let error as HTTPClientError where PlainCause.timeouts.contains(error) {
            throw WebClientError(.timedOut, "\(url) did not answer in time")
        } catch is NIOTooManyBytesError {
            let message = "\(url) answers more than \(largestResponse) bytes: it is not siwad"
            throw WebClientError(.tooLarge, message)
        } catch {
            throw WebClientError(.unreachable, "nothing answers at \(url)")
        }
    }
}
