import AsyncHTTPClient
import Basics
package import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL
import Synchronization

/// The client of Apple's token endpoint. It keeps connections open between requests, follows no redirect and uses no proxy.
package struct TokenEndpointClient: Sendable {
    /// An answer with its header `Date` as Apple sent it, to compare clocks.
    package struct Dated: Sendable, Equatable {
        package let answer: TokenAnswer
        package let date: String?
        /// The connection of a first attempt broke, which may have used a code.
        package var isRepeated = false
    }

    /// Apple's answers have about two kilobytes.
    static let largestAnswer = 65_536

    /// Without a body.
    private let request: HTTPClient.Request
    private let client: HTTPClient
    private let names: NameCheck

    /// - Parameter version: of siwad, for the User-Agent that Apple sees.
    /// - Throws: `invalidURL`.
    package init(
        url: AppleURL,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        resolver: Resolver = Resolver()
    ) throws(WebClientError) {
        let headers = HTTPHeaders([
            ("User-Agent", "siwad/\(version) (Sign in with Apple)"),
            ("Accept", "application/json"),
            // Without it, any coding would be acceptable (RFC 9110 §12.5.3), and none is decoded here.
            ("Accept-Encoding", "identity"),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ])
        do {
            request = try HTTPClient.Request(url: "\(url)/auth/token", method: .POST, headers: headers)
        } catch {
            throw WebClientError(.invalidURL, "the URL \(url) can't be requested; write https://host")
        }
        var configuration = HTTPClient.Configuration.singleAttempt
        configuration.tlsConfiguration?.minimumTLSVersion = .tlsv12
        configuration.timeout = .init(connect: .seconds(3))
        // As many as there are sign-ins at the same time: none waits for another one's answer.
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = 256
        client = HTTPClient(eventLoopGroupProvider: .shared(eventLoopGroup), configuration: configuration)
        names = NameCheck(host: url.host, resolver: resolver)
    }

    /// Call it once all requests have ended.
    package func close() async {
        // Fails only if requests are pending.
        try? await client.shutdown()
    }

    /// Runs `work` with a client of its own.
    package static func with<Value: Sendable>(
        url: AppleURL,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        _ work: (TokenEndpointClient) async throws -> Value
    ) async throws -> Value {
        let client = try TokenEndpointClient(url: url, version: version, eventLoopGroup: eventLoopGroup)
        return try await withCleanup(client.close) { try await work(client) }
    }

    /// Sends a grant. After a connection that broke, it is sent a second time, because Apple closes idle connections; after
    /// any other failure it is not, because a code works once.
    ///
    /// - Parameter budget: for all of it.
    package func send(_ grant: TokenGrant, budget: Duration) async -> Dated {
        let deadline = NIODeadline.now() + TimeAmount(budget)
        do throws(Unavailability) {
            do throws(Unavailability) {
                return try await attempt(grant, until: deadline)
            } catch  where error.cause == .broken {
                var second = try await attempt(grant, until: deadline)
                second.isRepeated = true
                return second
            }
        } catch {
            return Dated(answer: .unavailable(error), date: nil)
        }
    }

    private func attempt(_ grant: TokenGrant, until deadline: NIODeadline) async throws(Unavailability) -> Dated {
        try await names.check(within: Duration(deadline - NIODeadline.now()))
        var request = request
        request.body = .byteBuffer(ByteBuffer(string: grant.form))
        let reader = ResponseAccumulator(request: request, maxBodySize: Self.largestAnswer)
        do {
            let response = try await client.result(of: request, reader, deadline: deadline)
            let date = response.headers.first(name: "Date")
            let answer = TokenAnswer(
                status: Int(response.status.code),
                retryAfter: response.headers.first(name: "Retry-After"),
                date: date,
                body: response.body.map { Array(buffer: $0) } ?? []
            )
            names.succeeded()
            return Dated(answer: answer, date: date)
        } catch {
            names.failed()
            throw Self.unavailability(error)
        }
    }

    private static func unavailability(_ error: any Error) -> Unavailability {
        switch error {
        case is ResponseAccumulator.ResponseTooBigError: Unavailability(.notUnderstood)
        case let error as HTTPClientError where PlainCause.timeouts.contains(error): Unavailability(.timedOut)
        case ChannelError.connectTimeout: Unavailability(.timedOut)
        case _ where PlainCause.isBrokenConnection(error): Unavailability(.broken)
        case is HTTPParserError: Unavailability(.notUnderstood)
        default: Unavailability(.unreachable)
        }
    }
}

/// Looks Apple's host up before a request, if the request before it failed.
///
/// AsyncHTTPClient looks the host up for each new connection, one after the other, and a look-up can't be cancelled. With a
/// name server that does not answer, look-ups of requests that were given up long ago would delay the first request that could
/// get an answer. A kept connection needs no look-up, so nothing is looked up here while requests succeed.
private final class NameCheck: Sendable {
    private let host: String
    private let resolver: Resolver
    private let isDue = Atomic(false)

    init(host: String, resolver: Resolver) {
        self.host = host
        self.resolver = resolver
    }

    /// - Throws: `unreachable` if the name server does not know the host or does not answer in time.
    func check(within limit: Duration) async throws(Unavailability) {
        guard isDue.load(ordering: .relaxed) else { return }
        do throws(WebClientError) {
            _ = try await resolver.addresses(of: host, within: limit)
        } catch {
            throw Unavailability(.unreachable)
        }
    }

    func succeeded() {
        isDue.store(false, ordering: .relaxed)
    }

    func failed() {
        resolver.forget(host)
        isDue.store(true, ordering: .relaxed)
    }
}
