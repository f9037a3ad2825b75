import AsyncHTTPClient
import Glibc
import JOSE
import NIOCore
import NIOHTTP1
import NIOPosix

/// A response of a server.
struct WebResponse: Sendable {
    let status: Int
    /// By lower-case name.
    let fields: [String: String]
    let body: String

    /// The last part of a problem's type; nil if the response is not `application/problem+json`.
    var reason: String? {
        guard fields["content-type"] == "application/problem+json",
            let problem = try? JSONValue(parsing: Array(body.utf8)), problem["status"]?.integer == Int64(status)
        else { return nil }
        return problem["type"]?.string?.split(separator: ":").last.map(String.init)
    }

    /// The seconds of Retry-After.
    var retryAfter: Int? { fields["retry-after"].flatMap { Int($0) } }
}

/// The HTTP client of the tests.
enum Web {
    /// The thread of all clients, proxies and stubs of the tests; it ends with the process.
    static let eventLoops: any EventLoopGroup = MultiThreadedEventLoopGroup(numberOfThreads: 1)

    /// Ends with the process.
    private static let client: HTTPClient = {
        var configuration = HTTPClient.Configuration()
        configuration.redirectConfiguration = .disallow
        configuration.timeout = .init(connect: .seconds(10))
        configuration.connectionPool.retryConnectionEstablishment = false
        configuration.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = 512
        return HTTPClient(eventLoopGroupProvider: .shared(eventLoops), configuration: configuration)
    }()

    static func post(
        _ body: String,
        to url: String,
        type: String? = "application/json",
        closing: Bool = false
    ) async throws -> WebResponse {
        try await request("POST", url, body: body, type: type, closing: closing)
    }

    /// Whether an error means that there was no connection, so that no part of the request was sent.
    static func isUnconnected(_ error: any Error) -> Bool {
        error is NIOConnectionError || (error as? IOError)?.errnoCode == ECONNREFUSED
            || error as? HTTPClientError == .connectTimeout
    }

    static func get(_ url: String) async throws -> WebResponse {
        try await request("GET", url)
    }

    static func request(
        _ method: String,
        _ url: String,
        body: String? = nil,
        type: String? = nil,
        headers: [String: String] = [:],
        closing: Bool = false
    ) async throws -> WebResponse {
        var request = HTTPClientRequest(url: url)
        request.method = HTTPMethod(rawValue: method)
        if let type { request.headers.add(name: "content-type", value: type) }
        for (name, value) in headers { request.headers.add(name: name, value: value) }
        if closing { request.headers.add(name: "connection", value: "close") }
        if let body { request.body = .bytes(ByteBuffer(string: body)) }
        let response = try await client.execute(request, timeout: .seconds(60))
        let content = try await response.body.collect(upTo: 4 << 20)
        var fields: [String: String] = [:]
        for (name, value) in response.headers { fields[name.lowercased()] = value }
        return WebResponse(status: Int(response.status.code), fields: fields, body: String(buffer: content))
    }
}
