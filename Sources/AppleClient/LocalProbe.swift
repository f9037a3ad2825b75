import AsyncHTTPClient
package import NIOCore
import NIOHTTP1
import NIOSSL

/// Asks a server of this machine whether it answers.
package struct LocalProbe: Sendable {
    /// What it answered.
    package struct Answer: Sendable, Equatable {
        /// The status.
        package let status: Int
        /// The header `Allow`.
        package let allow: String?
        /// The first kilobytes of the body.
        package let body: String
        /// From the first byte sent to the last one received.
        package let latency: Duration
    }

    /// No answer of siwad to GET has more bytes.
    static let largestAnswer = 65_536

    private let userAgent: String
    private let deadline: Duration
    private let eventLoopGroup: any EventLoopGroup

    /// A probe that waits at most `deadline` for the whole answer.
    package init(version: String, eventLoopGroup: any EventLoopGroup, deadline: Duration = .seconds(5)) {
        self.userAgent = KeySetFetcher.userAgent(version)
        self.deadline = deadline
        self.eventLoopGroup = eventLoopGroup
    }

    /// The answer to GET.
    ///
    /// The certificate is not verified: it is for the name that Apple calls, and the connection leads to this machine.
    /// - Throws: `unreachable`, `timedOut`, `tooLarge`.
    package func get(_ url: String) async throws(AppleClientError) -> Answer {
        var configuration = HTTPClient.Configuration()
        var tls = TLSConfiguration.makeClientConfiguration()
        tls.certificateVerification = .none
        configuration.tlsConfiguration = tls
        configuration.redirectConfiguration = .disallow
        configuration.timeout = .init(connect: .nanoseconds(deadline.nanoseconds))
        configuration.connectionPool.retryConnectionEstablishment = false
        configuration.httpVersion = .http1Only
        let client = HTTPClient(eventLoopGroupProvider: .shared(eventLoopGroup), configuration: configuration)
        let result: Result<Answer, AppleClientError>
        do {
            result = .success(try await withDeadline(deadline) { try await get(url, client) })
        } catch let error as HTTPClientError where KeySetFetcher.timeouts.contains(error) {
            result = .failure(AppleClientError(.timedOut, "\(url) did not answer in time"))
        } catch is NIOTooManyBytesError {
            let message = "\(url) answers more than \(Self.largestAnswer) bytes: it is not siwad"
            result = .failure(AppleClientError(.tooLarge, message))
        } catch {
            result = .failure(AppleClientError(.unreachable, "nothing answers at \(url)"))
        }
        // Fails only when requests are under way, and there are none.
        try? await client.shutdown()
        return try result.get()
    }

    private func get(_ url: String, _ client: HTTPClient) async throws -> Answer {
        var request = HTTPClientRequest(url: url)
        request.headers.add(name: "User-Agent", value: userAgent)
        let start = ContinuousClock.now
        let response = try await client.execute(request, timeout: .nanoseconds(deadline.nanoseconds))
        let body = try await response.body.collect(upTo: Self.largestAnswer)
        return Answer(
            status: Int(response.status.code),
            allow: response.headers.first(name: "Allow"),
            body: String(String(buffer: body).prefix(4_096)),
            latency: .now - start
        )
    }
}
