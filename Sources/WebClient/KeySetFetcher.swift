import AsyncHTTPClient
import Glibc
package import NIOCore
import NIOHTTP1
import NIOSSL

/// Fetches a key set. It checks only the size of the response; the caller parses it.
package struct KeySetFetcher: Sendable {
    /// More than any key set: Apple's has about two kilobytes.
    static let largestResponse = 262_144

    private let url: KeySetURL
    private let userAgent: String
    private let deadline: Duration
    private let eventLoopGroup: any EventLoopGroup
    private let resolver: Resolver

    /// - Parameters:
    ///   - version: of siwad, for the User-Agent that Apple sees.
    ///   - deadline: for the whole response.
    package init(
        url: KeySetURL,
        version: String,
        eventLoopGroup: any EventLoopGroup,
        deadline: Duration = .seconds(10),
        resolver: Resolver = Resolver()
    ) {
        self.url = url
        self.userAgent = notificationUserAgent(version)
        self.deadline = deadline
        self.eventLoopGroup = eventLoopGroup
        self.resolver = resolver
    }

    package func fetch() async throws(WebClientError) -> [UInt8] {
        try await fetchDated().bytes
    }

    /// Fetches the key set with the header `Date` as the server sent it (RFC 9110 §6.6.1); `nil` for a file.
    package func fetchDated() async throws(WebClientError) -> (bytes: [UInt8], date: String?) {
        switch url.source {
        case .file(let path):
            return (try Self.read(path), nil)
        case .web(let address):
            do {
                return try await fetch(address)
            } catch {
                throw Self.error(error, address)
            }
        }
    }

    // MARK: Web

    /// Uses a client for one fetch only, because the next fetch is an hour later and the client's certificates and
    /// connection would occupy memory until then.
    private func fetch(_ address: String) async throws -> (bytes: [UInt8], date: String?) {
        var configuration = HTTPClient.Configuration.singleAttempt
        configuration.tlsConfiguration?.minimumTLSVersion = .tlsv12
        configuration.timeout = .init(connect: .seconds(5), read: .seconds(10))
        return try await withHTTPClient(configuration, on: eventLoopGroup, deadline: deadline) { client in
            // The client looks names up one after the other, and can't cancel a look-up. With a name server that does not
            // answer, look-ups of earlier fetches would delay the first fetch that could succeed.
            if let host = url.host { _ = try await resolver.addresses(of: host, within: deadline) }
            var request = HTTPClientRequest(url: address)
            request.headers.add(name: "User-Agent", value: userAgent)
            request.headers.add(name: "Accept", value: "application/json")
            // Without it, any coding would be acceptable (RFC 9110 §12.5.3), and none is decoded here.
            request.headers.add(name: "Accept-Encoding", value: "identity")
            let response = try await client.execute(request, timeout: TimeAmount(deadline))
            guard response.status == .ok else {
                throw WebClientError(
                    .unexpectedStatus(Int(response.status.code)),
                    "\(address) answered \(response.status.code) instead of a key set; check the URL of the key set"
                )
            }
            let body = try await response.body.collect(upTo: Self.largestResponse)
            return (Array(buffer: body), response.headers.first(name: "Date"))
        }
    }

    private static func error(_ error: any Error, _ address: String) -> WebClientError {
        switch error {
        case let error as WebClientError where error.code == .unreachable:
            unreachable(address, error.message)
        case let error as WebClientError:
            error
        case is NIOTooManyBytesError:
            WebClientError(
                .tooLarge,
                "\(address) answered more than \(largestResponse) bytes; check the URL of the key set"
            )
        case let error as HTTPClientError where PlainCause.timeouts.contains(error):
            WebClientError(.timedOut, "\(address) did not answer in time; check the network")
        default:
            unreachable(address, PlainCause.words(for: error, from: address))
        }
    }

    private static func unreachable(_ address: String, _ cause: String) -> WebClientError {
        WebClientError(.unreachable, "cannot reach \(address): \(cause); check the network and the URL")
    }

    // MARK: File

    /// Blocks the calling thread, but reads only regular files of a few kilobytes.
    private static func read(_ path: String) throws(WebClientError) -> [UInt8] {
        // Opened without waiting and then examined, so that no other file, such as a pipe, can take its place in between.
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        guard descriptor >= 0 else {
            throw WebClientError(.unreadableFile, "cannot read \(path): \(String(cString: strerror(errno)))")
        }
        defer { close(descriptor) }
        var status = stat()
        guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT == S_IFREG else {
            throw WebClientError(.unreadableFile, "cannot read \(path): it is not a file")
        }
        var content: [UInt8] = []
        var block = [UInt8](repeating: 0, count: 16_384)
        while true {
            let count = Glibc.read(descriptor, &block, block.count)
            guard count >= 0 else {
                throw WebClientError(.unreadableFile, "cannot read \(path): \(String(cString: strerror(errno)))")
            }
            guard count > 0 else { return content }
            content += block[..<count]
            guard content.count <= largestResponse else {
                throw WebClientError(.tooLarge, "\(path) has more than \(largestResponse) bytes; it is not a key set")
            }
        }
    }
}
