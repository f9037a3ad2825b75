import AsyncHTTPClient
package import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL

/// The client of Apple's token endpoint. It keeps connections open between requests, follows no redirect and uses no proxy.
package struct TokenEndpointClient: Sendable {
    /// An answer with its header `Date` as Apple sent it, to compare clocks.
    package struct Dated: Sendable, Equatable {
        package let answer: TokenAnswer
        package let date: String?
        /// The connection of a first attempt broke, which may have used a code.
        package var isRepeated = false

        package init(answer: TokenAnswer, date: String?) {
            self.answer = answer
            self.date = date
        }
    }

    /// Apple's answers have about two kilobytes.
    static let largestAnswer = 65_536

    private let url: String
    private let userAgent: String
    private let client: HTTPClient

    /// - Parameter version: of siwad, for the User-Agent that Apple sees.
    package init(url: AppleURL, version: String, eventLoopGroup: any EventLoopGroup) {
        var configuration = HTTPClient.Configuration.singleAttempt
        configuration.tlsConfiguration?.minimumTLSVersion = .tlsv12
        configuration.timeout = .init(connect: .seconds(3))
        // As many as there are sign-ins at the same time: none waits for another one's answer.
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = 256
        self.url = "\(url)/auth/token"
        userAgent = "siwad/\(version) (Sign in with Apple)"
        client = HTTPClient(eventLoopGroupProvider: .shared(eventLoopGroup), configuration: configuration)
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
        let client = TokenEndpointClient(url: url, version: version, eventLoopGroup: eventLoopGroup)
        let result: Result<Value, any Error>
        do {
            result = .success(try await work(client))
        } catch {
            result = .failure(error)
        }
        await client.close()
        return try result.get()
    }

    /// Sends a grant. After a connection that broke, it is sent a second time, because Apple closes idle connections; after
    /// any other failure it is not, because a code works once.
    ///
    /// - Parameter budget: for all of it.
    package func send(_ grant: TokenGrant, budget: Duration) async -> Dated {
        let deadline = ContinuousClock.now + budget
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

    private func attempt(
        _ grant: TokenGrant,
        until deadline: ContinuousClock.Instant
    ) async throws(Unavailability) -> Dated {
        var request = HTTPClientRequest(url: url)
        request.method = .POST
        request.headers.add(name: "User-Agent", value: userAgent)
        request.headers.add(name: "Accept", value: "application/json")
        request.headers.add(name: "Content-Type", value: "application/x-www-form-urlencoded")
        request.body = .bytes(ByteBuffer(string: grant.form))
        do {
            return try await withThrowingTaskGroup(of: Dated.self) { [request] group in
                group.addTask { try await receive(request) }
                group.addTask {
                    try await Task.sleep(until: deadline)
                    throw HTTPClientError.deadlineExceeded
                }
                defer { group.cancelAll() }
                guard let answer = try await group.next() else { throw CancellationError() }
                return answer
            }
        } catch {
            throw Self.unavailability(error)
        }
    }

    private func receive(_ request: HTTPClientRequest) async throws -> Dated {
        // The task of the deadline ends it.
        let response = try await client.execute(request, deadline: .distantFuture)
        let body = try await response.body.collect(upTo: Self.largestAnswer)
        let answer = TokenAnswer(
            status: Int(response.status.code),
            retryAfter: response.headers.first(name: "Retry-After"),
            body: Array(buffer: body)
        )
        return Dated(answer: answer, date: response.headers.first(name: "Date"))
    }

    private static func unavailability(_ error: any Error) -> Unavailability {
        switch error {
        case is NIOTooManyBytesError: Unavailability(.notUnderstood)
        case let error as HTTPClientError where PlainCause.timeouts.contains(error): Unavailability(.timedOut)
        case ChannelError.connectTimeout: Unavailability(.timedOut)
        case _ where PlainCause.isBrokenConnection(error): Unavailability(.broken)
        case is HTTPParserError: Unavailability(.notUnderstood)
        default: Unavailability(.unreachable)
        }
    }
}
