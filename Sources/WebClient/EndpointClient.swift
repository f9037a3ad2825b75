import AsyncHTTPClient
package import Basics
package import NIOCore
import NIOHTTP1
import NIOPosix
import NIOSSL
import Synchronization

/// Posts to one endpoint of an application, over connections that it keeps.
///
/// It looks the host up itself, lets ``AddressPolicy`` judge the addresses, and connects to the address that was judged: a
/// second look-up could find another one. Redirects are not followed.
package final class EndpointClient: Sendable {
    /// Settings of the daemon, the same for all endpoints.
    package struct Settings: Sendable {
        package var policy: AddressPolicy
        /// A PEM file of authorities in addition to the system's.
        package var authorities: String?
        /// A proxy that tunnels connections (CONNECT), `http://host:port`. It then looks the hosts up.
        package var proxy: String?
        package var version: String

        package init(policy: AddressPolicy, authorities: String? = nil, proxy: String? = nil, version: String) {
            self.policy = policy
            self.authorities = authorities
            self.proxy = proxy
            self.version = version
        }
    }

    package struct Response: Sendable, Equatable {
        package let status: Int
        package let retryAfter: String?
        /// The field `webhook-delivery`, by which a receiver asks to be disabled.
        package let delivery: String?
        package let connection: Connection
    }

    /// For people.
    package struct Connection: Sendable, Equatable {
        /// nil with a proxy.
        package internal(set) var address: IPAddress?
        /// Such as `TLS 1.3`; nil without TLS.
        package internal(set) var encryption: String?
    }

    /// Why there is no answer. The raw values are as in `siwa.deliveries.reason`.
    package enum Reason: String, Sendable, CaseIterable {
        /// No whole answer in time.
        case timedOut = "timed-out"
        /// The host is unknown, the connection was refused or broke.
        case unreachable
        case tls
        /// ``AddressPolicy`` refuses the address.
        case blocked
        /// The answer is not HTTP.
        case malformedAnswer = "malformed-answer"
    }

    package struct Failure: Error, Sendable, Equatable {
        package let reason: Reason
        /// Contains no part of the answer and no query of the URL.
        package let cause: String
        /// The next step, where the configuration of the daemon or the URL is the cause.
        package let remedy: String?
        /// The connection was open, so that the message may have arrived.
        package let mayHaveArrived: Bool

        package init(_ reason: Reason, _ cause: String, remedy: String? = nil, mayHaveArrived: Bool = false) {
            self.reason = reason
            self.cause = cause
            self.remedy = remedy
            self.mayHaveArrived = mayHaveArrived
        }

        /// The cause and the next step in one line.
        package var words: String { cause + (remedy.map { "; \($0)" } ?? "") }
    }

    /// An HTTP client whose connections lead to one address.
    private final class Pinned: Sendable {
        let address: IPAddress?
        let client: HTTPClient
        let encryption: Encryption

        init(_ address: IPAddress?, _ client: HTTPClient, _ encryption: Encryption) {
            self.address = address
            self.client = client
            self.encryption = encryption
        }
    }

    /// The encryption of the latest connection, for people.
    private final class Encryption: Sendable {
        let version = Mutex<TLSVersion?>(nil)

        var description: String? {
            switch version.withLock({ $0 }) {
            case .tlsv12: "TLS 1.2"
            case .tlsv13: "TLS 1.3"
            case .tlsv1, .tlsv11, nil: nil
            }
        }
    }

    private struct State {
        var current: Pinned?
        /// The number of requests that use each client. A replaced client is shut down after its last one.
        var users: [ObjectIdentifier: Int] = [:]
        /// Connections to these failed since one was answered; other addresses of the host are tried first.
        var avoided: Set<IPAddress> = []
    }

    private static let connectLimit = Duration.seconds(5)
    private static let proxyRemedy = "check SIWAD_DELIVERY_PROXY"
    /// With a proxy that does not answer, the first of several deadlines decides which one it is.
    private static let lateConnections: [HTTPClientError] = [
        .connectTimeout, .getConnectionFromPoolTimeout, .httpProxyHandshakeTimeout,
    ]
    /// More of the body is not read, because nothing is done with it.
    static let largestBody = 8_192

    package let url: EndpointURL
    private let settings: Settings
    private let configuration: HTTPClient.Configuration
    /// Without the headers and the body of a message.
    private let request: HTTPClient.Request
    private let resolver: Resolver
    private let group: any EventLoopGroup
    private let state = Mutex(State())

    /// - Throws: `unreadableFile` for the file of authorities; `invalidURL` for the proxy.
    package init(
        _ url: EndpointURL,
        concurrency: Int,
        settings: Settings,
        resolver: Resolver,
        eventLoopGroup: any EventLoopGroup
    ) throws(WebClientError) {
        self.url = url
        self.settings = settings
        self.resolver = resolver
        group = eventLoopGroup
        var configuration = HTTPClient.Configuration.singleAttempt
        configuration.tlsConfiguration?.minimumTLSVersion = .tlsv12
        configuration.timeout = .init(connect: TimeAmount(Self.connectLimit))
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = concurrency
        configuration.tlsConfiguration?.additionalTrustRoots = [.certificates(try settings.readAuthorities())]
        if let proxy = settings.proxy {
            let address = try EndpointURL(parsing: proxy)
            guard !address.isEncrypted, ["", "/"].contains(proxy.dropFirst(7).drop { $0 != "/" }) else {
                throw WebClientError(.invalidURL, "the URL of the proxy is not usable; write http://host:port")
            }
            configuration.proxy = .server(host: address.host, port: address.port)
        }
        self.configuration = configuration
        do {
            let agent = HTTPHeaders([("User-Agent", "siwad/\(settings.version)")])
            request = try HTTPClient.Request(url: url.text, method: .POST, headers: agent)
        } catch {
            throw WebClientError(.invalidURL, "the URL \(url) can't be requested; write https://host/path")
        }
    }

    /// Sends one POST and reads the answer.
    ///
    /// - Parameter timeout: from here to the end of the answer.
    package func post(
        _ body: [UInt8],
        headers: [(name: String, value: String)],
        timeout: Duration
    ) async throws(Failure) -> Response {
        do {
            return try await exchange(body, headers, until: .now() + TimeAmount(timeout), timeout)
        } catch {
            throw failure(error)
        }
    }

    /// Closes the connections. Requests under way fail.
    package func close() async {
        let pinned = state.withLock { state in
            defer { state.current = nil }
            return state.current
        }
        // Fails only if it is shut down already.
        try? await pinned?.client.shutdown()
    }

    // MARK: - Private parts

    private func exchange(
        _ body: [UInt8],
        _ headers: [(name: String, value: String)],
        until deadline: NIODeadline,
        _ timeout: Duration
    ) async throws -> Response {
        let pinned = try await pin(within: timeout)
        let result: Result<Response, any Error>
        do {
            result = .success(try await send(body, headers, until: deadline, over: pinned))
        } catch {
            result = .failure(error)
        }
        await release(pinned)
        do {
            let response = try result.get()
            state.withLock { $0.avoided = [] }
            return response
        } catch is CancellationError {
            throw CancellationError()
        } catch {
            let failure = failure(error)
            if failure.reason == .unreachable {
                resolver.forget(url.host)
                state.withLock { state in
                    if let address = pinned.address { state.avoided.insert(address) }
                }
            }
            throw failure
        }
    }

    private func send(
        _ body: [UInt8],
        _ headers: [(name: String, value: String)],
        until deadline: NIODeadline,
        over pinned: Pinned
    ) async throws -> Response {
        var request = request
        request.headers.add(contentsOf: headers)
        request.body = .byteBuffer(ByteBuffer(bytes: body))
        let head: HTTPResponseHead
        do {
            head = try await pinned.client.result(of: request, AnswerReader(), deadline: deadline)
        } catch let error as AnswerReader.LongBody {
            head = error.head
        }
        return Response(
            status: Int(head.status.code),
            retryAfter: head.headers.first(name: "Retry-After"),
            delivery: head.headers.first(name: "webhook-delivery"),
            connection: Connection(address: pinned.address, encryption: pinned.encryption.description)
        )
    }

    /// The client for an address that the policy allows; ``release(_:)`` must follow.
    private func pin(within limit: Duration) async throws(Failure) -> Pinned {
        let address = try await settings.addresses(of: url, by: resolver, within: limit).map(chosen)
        let (pinned, replaced) = state.withLock { state in
            let kept = state.current.flatMap { $0.address == address ? $0 : nil }
            let pinned = kept ?? makeClient(for: address)
            var replaced = kept == nil ? state.current : nil
            if let old = replaced, state.users[ObjectIdentifier(old), default: 0] > 0 { replaced = nil }
            state.current = pinned
            state.users[ObjectIdentifier(pinned), default: 0] += 1
            return (pinned, replaced)
        }
        // Fails only if requests are pending, and it has no user.
        try? await replaced?.client.shutdown()
        return pinned
    }

    private func release(_ pinned: Pinned) async {
        let isUnused = state.withLock { state in
            let users = state.users[ObjectIdentifier(pinned), default: 1] - 1
            state.users[ObjectIdentifier(pinned)] = users == 0 ? nil : users
            return users == 0 && state.current !== pinned
        }
        // Fails if it is shut down already.
        if isUnused { try? await pinned.client.shutdown() }
    }

    /// The address to connect to.
    ///
    /// - Parameter allowed: at least one.
    private func chosen(_ allowed: [IPAddress]) -> IPAddress {
        state.withLock { state in
            if state.avoided.isSuperset(of: allowed) { state.avoided = [] }
            // Connections that work are kept while the host still has their address.
            let usable = allowed.filter { !state.avoided.contains($0) }
            if let current = state.current?.address, usable.contains(current) { return current }
            return usable.first ?? allowed[0]
        }
    }

    private func makeClient(for address: IPAddress?) -> Pinned {
        var configuration = configuration
        // SNI, the field Host and the check of the certificate still use the name.
        if let address, url.literal == nil { configuration.dnsOverride[url.host] = address.description }
        let encryption = Encryption()
        configuration.http1_1ConnectionDebugInitializer = { channel in
            channel.eventLoop.makeCompletedFuture {
                try StatusCheck.add(to: channel)
                // Without TLS there is no such handler.
                let handler = try? channel.pipeline.syncOperations.handler(type: NIOSSLHandler.self)
                encryption.version.withLock { $0 = handler?.tlsVersion }
            }
        }
        let client = HTTPClient(eventLoopGroupProvider: .shared(group), configuration: configuration)
        return Pinned(address, client, encryption)
    }

    private func failure(_ error: any Error) -> Failure {
        let words = PlainCause.words(
            for: error,
            from: url.description,
            trustAdvice: "name its authority in SIWAD_DELIVERY_CA"
        )
        switch error {
        case let error as Failure:
            return error
        case let error as HTTPClientError where [.deadlineExceeded, .readTimeout].contains(error):
            return Failure(.timedOut, words)
        case let error as HTTPClientError where PlainCause.proxyRefusals.contains(error):
            return Failure(.unreachable, words, remedy: Self.proxyRemedy)
        case is NIOConnectionError where settings.proxy != nil:
            return Failure(.unreachable, "no connection to the proxy: \(words)", remedy: Self.proxyRemedy)
        case let error as HTTPClientError where settings.proxy != nil && Self.lateConnections.contains(error):
            return Failure(.unreachable, PlainCause.proxyLate, remedy: Self.proxyRemedy)
        case _ where PlainCause.isBrokenConnection(error):
            return Failure(.unreachable, words, mayHaveArrived: true)
        case let error as HTTPClientError where error == .tlsHandshakeTimeout:
            return Failure(.tls, words)
        case is NIOSSLError, is NIOSSLExtraError:
            return Failure(.tls, words)
        case is HTTPParserError:
            return Failure(.malformedAnswer, words)
        default:
            return Failure(.unreachable, words)
        }
    }
}

extension EndpointClient.Settings {
    /// - Throws: `unreadableFile`.
    package func checkAuthorities() throws(WebClientError) { _ = try readAuthorities() }

    fileprivate func readAuthorities() throws(WebClientError) -> [NIOSSLCertificate] {
        guard let file = authorities else { return [] }
        do {
            return try NIOSSLCertificate.fromPEMFile(file)
        } catch {
            let advice = "check its path, its permissions and its content"
            throw WebClientError(.unreadableFile, "\(file) is not a readable PEM file with certificates; \(advice)")
        }
    }

    /// The addresses that siwad may connect to for an endpoint, in the resolver's order; at least one. nil with a proxy, which
    /// looks the host up itself.
    ///
    /// - Throws: `unreachable` for an unknown host, `blocked` if the policy refuses all its addresses.
    package func addresses(
        of url: EndpointURL,
        by resolver: Resolver,
        within limit: Duration = Resolver.limit
    ) async throws(EndpointClient.Failure) -> [IPAddress]? {
        guard proxy == nil else {
            if let literal = url.literal {
                if let found = refusal(of: literal, for: url) { throw EndpointClient.Failure(found) }
            } else if !url.isEncrypted {
                let cause = "http: to a name is not possible through a proxy, which looks the name up"
                throw EndpointClient.Failure(.blocked, cause, remedy: "use https:")
            }
            return nil
        }
        let addresses: [IPAddress]
        do throws(WebClientError) {
            addresses = try await resolver.addresses(of: url.host, within: limit)
        } catch {
            throw EndpointClient.Failure(.unreachable, error.message)
        }
        let allowed = addresses.filter { refusal(of: $0, for: url) == nil }
        guard allowed.isEmpty, let first = addresses.first.flatMap({ refusal(of: $0, for: url) }) else {
            return allowed
        }
        throw EndpointClient.Failure(first)
    }

    private func refusal(of address: IPAddress, for url: EndpointURL) -> AddressPolicy.Refusal? {
        policy.refusal(of: address, isEncrypted: url.isEncrypted)
    }
}

extension EndpointClient.Failure {
    fileprivate init(_ refusal: AddressPolicy.Refusal) {
        self.init(.blocked, refusal.cause, remedy: refusal.remedy)
    }
}

/// Keeps the head of an answer and counts its body, of which nothing is used.
private final class AnswerReader: HTTPClientResponseDelegate {
    /// Ends the reading of an answer, and its connection.
    struct LongBody: Error {
        let head: HTTPResponseHead
    }

    private let state = Mutex<(head: HTTPResponseHead?, size: Int)>((nil, 0))

    func didReceiveHead(task: HTTPClient.Task<HTTPResponseHead>, _ head: HTTPResponseHead) -> EventLoopFuture<Void> {
        state.withLock { $0.head = head }
        return task.eventLoop.makeSucceededVoidFuture()
    }

    func didReceiveBodyPart(task: HTTPClient.Task<HTTPResponseHead>, _ part: ByteBuffer) -> EventLoopFuture<Void> {
        let (head, size) = state.withLock { state in
            state.size += part.readableBytes
            return state
        }
        guard let head, size > EndpointClient.largestBody else { return task.eventLoop.makeSucceededVoidFuture() }
        return task.eventLoop.makeFailedFuture(LongBody(head: head))
    }

    func didFinishRequest(task: HTTPClient.Task<HTTPResponseHead>) throws -> HTTPResponseHead {
        guard let head = state.withLock({ $0.head }) else { throw HTTPParserError.invalidEOFState }
        return head
    }
}
