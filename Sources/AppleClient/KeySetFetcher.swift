import AsyncHTTPClient
import Glibc
package import NIOCore
import NIOHTTP1
import NIOSSL

/// Fetches a key set. What comes back is checked for its size only: whether it is one is for the reader to say.
package struct KeySetFetcher: Sendable {
    /// More than any key set: Apple's has about two kilobytes.
    static let largestAnswer = 262_144

    private let url: KeySetURL
    private let userAgent: String
    private let deadline: Duration
    private let eventLoopGroup: any EventLoopGroup

    /// A fetcher for one URL.
    ///
    /// - Parameters:
    ///   - version: of siwad; Apple sees it in the User-Agent.
    ///   - deadline: for the whole answer.
    package init(
        url: KeySetURL,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        deadline: Duration = .seconds(10)
    ) {
        self.url = url
        self.userAgent = Self.userAgent(version)
        self.deadline = deadline
        self.eventLoopGroup = eventLoopGroup
    }

    /// The bytes of the key set.
    package func fetch() async throws(AppleClientError) -> [UInt8] {
        try await fetchDated().bytes
    }

    /// The bytes of the key set, and what the server that sent them believes the time to be: the header `Date` as it was
    /// sent (RFC 9110 §6.6.1).
    package func fetchDated() async throws(AppleClientError) -> (bytes: [UInt8], date: String?) {
        switch url.source {
        case .web(let address): try await fetch(address)
        case .file(let path): (try Self.read(path), nil)
        }
    }

    static func userAgent(_ version: String) -> String {
        "siwad/\(version) (Sign in with Apple notification endpoint)"
    }

    // MARK: Web

    /// A client lives for one fetch: an hour lies between two of them, and its certificates and connection would lie
    /// idle in memory all that time.
    private func fetch(_ address: String) async throws(AppleClientError) -> (bytes: [UInt8], date: String?) {
        var configuration = HTTPClient.Configuration()
        var tls = TLSConfiguration.makeClientConfiguration()
        tls.minimumTLSVersion = .tlsv12
        configuration.tlsConfiguration = tls
        configuration.redirectConfiguration = .disallow
        configuration.timeout = .init(connect: .seconds(5), read: .seconds(10))
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = 1
        // Whoever asks for keys tries again by himself, and wants to know at once.
        configuration.connectionPool.retryConnectionEstablishment = false
        configuration.httpVersion = .http1Only
        let client = HTTPClient(eventLoopGroupProvider: .shared(eventLoopGroup), configuration: configuration)
        let result: Result<Answer, AppleClientError>
        do {
            result = .success(try await withDeadline(deadline) { try await get(address, client) })
        } catch {
            result = .failure(Self.error(error, address))
        }
        // Fails only when requests are under way, and there are none.
        try? await client.shutdown()
        return try result.get()
    }

    private typealias Answer = (bytes: [UInt8], date: String?)

    private func get(_ address: String, _ client: HTTPClient) async throws -> Answer {
        var request = HTTPClientRequest(url: address)
        request.headers.add(name: "User-Agent", value: userAgent)
        request.headers.add(name: "Accept", value: "application/json")
        let response = try await client.execute(request, timeout: .nanoseconds(deadline.nanoseconds))
        guard response.status == .ok else {
            throw AppleClientError(
                .unexpectedStatus(Int(response.status.code)),
                "\(address) answered \(response.status.code) instead of a key set; check the URL of the key set"
            )
        }
        let body = try await response.body.collect(upTo: Self.largestAnswer)
        return (Array(buffer: body), response.headers.first(name: "Date"))
    }

    private static func error(_ error: any Error, _ address: String) -> AppleClientError {
        switch error {
        case let error as AppleClientError:
            error
        case is NIOTooManyBytesError:
            AppleClientError(
                .tooLarge,
                "\(address) answered more than \(largestAnswer) bytes; check the URL of the key set"
            )
        case let error as HTTPClientError where timeouts.contains(error):
            AppleClientError(.timedOut, "\(address) did not answer in time; check the network")
        default:
            AppleClientError(
                .unreachable,
                "cannot reach \(address): \(PlainCause.words(for: error, from: address)); check the network and the URL"
            )
        }
    }

    static let timeouts: [HTTPClientError] = [
        .deadlineExceeded, .readTimeout, .connectTimeout, .getConnectionFromPoolTimeout, .tlsHandshakeTimeout,
    ]

    // MARK: File

    /// Reads on the calling thread: only regular files, and a few kilobytes of them.
    private static func read(_ path: String) throws(AppleClientError) -> [UInt8] {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        guard descriptor >= 0 else {
            throw AppleClientError(.unreadableFile, "cannot read \(path): \(String(cString: strerror(errno)))")
        }
        defer { close(descriptor) }
        var status = stat()
        guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else {
            throw AppleClientError(.unreadableFile, "cannot read \(path): it is not a file")
        }
        var content: [UInt8] = []
        var block = [UInt8](repeating: 0, count: 16_384)
        while true {
            let count = Glibc.read(descriptor, &block, block.count)
            guard count >= 0 else {
                throw AppleClientError(.unreadableFile, "cannot read \(path): \(String(cString: strerror(errno)))")
            }
            guard count > 0 else { return content }
            content += block[..<count]
            guard content.count <= largestAnswer else {
                throw AppleClientError(.tooLarge, "\(path) has more than \(largestAnswer) bytes; it is no key set")
            }
        }
    }
}

extension Duration {
    var nanoseconds: Int64 {
        let (seconds, attoseconds) = components
        return seconds * 1_000_000_000 + attoseconds / 1_000_000_000
    }
}
