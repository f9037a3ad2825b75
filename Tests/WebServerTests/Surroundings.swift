import JOSE
import Listening
import NIOCore
import NIOPosix
import NIOSSL
import ServiceLifecycle
import SignIn
import Telemetry
import TestSupport
import WebServer

/// What the servers of all tests share.
enum Surroundings {
    static let eventLoops = EventLoops.start(count: 1)

    static let log = Log(label: "test", level: .critical, format: .text) { _ in }

    /// A connection to a port of this machine that sends requests and reads nothing.
    static func unreadConnection(to port: Int, sending requests: String) async throws -> any Channel {
        let channel = try await ClientBootstrap(group: eventLoops.group)
            .channelOption(.autoRead, value: false)
            .connect(host: "127.0.0.1", port: port).get()
        channel.writeAndFlush(ByteBuffer(string: requests), promise: nil)
        return channel
    }
}

/// An application endpoint for the duration of a test.
struct ApplicationFixture {
    /// The token of the caller `shop`, who may act for `com.example.app`.
    static let token = "k7x2m9-token-of-the-shop"

    let address: ApplicationServer.Address
    let service: StubService
    /// Begins a graceful shutdown.
    let beginShutdown: @Sendable () async -> Void

    static func callers() throws -> CallerDirectory {
        let digest = SHA256.digest(Array(token.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }
        let other = String(repeating: "ab", count: 32)
        return try CallerDirectory(parsing: "other \(other)\nshop \(digest.joined()) com.example.app")
    }

    func connect(tls: NIOSSLContext? = nil) async throws -> RawClient {
        switch address {
        case .socket(let socket):
            try await RawClient.connect(toSocket: socket.path, on: Surroundings.eventLoops.group)
        case .network(let address):
            try await RawClient.connect(to: address.port, on: Surroundings.eventLoops.group, tls: tls)
        }
    }

    /// Sends requests on one connection; returns the responses.
    func ask(_ requests: String...) async throws -> [RawClient.Response] {
        let client = try await connect()
        var responses: [RawClient.Response] = []
        for request in requests {
            try await client.send(request)
            responses.append(try await client.response(toHEAD: request.hasPrefix("HEAD ")))
        }
        try await client.disconnect()
        return responses
    }

    /// Sends one request; returns the response.
    func one(_ request: String) async throws -> RawClient.Response {
        let client = try await connect()
        try await client.send(request)
        let response = try await client.response(toHEAD: request.hasPrefix("HEAD "))
        try await client.disconnect()
        return response
    }

    /// Runs a server while `body` runs, and ends it gracefully.
    static func with(
        _ service: StubService = StubService(),
        at address: ApplicationServer.Address = .network(ListenAddress(host: "127.0.0.1", port: 0)),
        limits: ApplicationServer.Limits = .init(),
        callers: CallerDirectory? = nil,
        certificates: ServerCertificates? = nil,
        certificateExpiry: Gauge? = nil,
        _ body: (ApplicationFixture) async throws -> Void
    ) async throws {
        let (places, place) = AsyncStream.makeStream(of: ApplicationServer.Address.self)
        let server = ApplicationServer(
            address: address,
            certificates: certificates,
            certificatePoll: .milliseconds(5),
            certificateExpiry: certificateExpiry,
            limits: limits,
            eventLoops: Surroundings.eventLoops,
            log: Surroundings.log,
            callers: { callers },
            service: service,
            onRunning: { place.yield($0) }
        )
        let services = ServiceGroup(
            configuration: ServiceGroupConfiguration(
                services: [Running(work: server.run)],
                logger: Surroundings.log.logger
            )
        )
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                defer { place.finish() }
                try await services.run()
            }
            var iterator = places.makeAsyncIterator()
            guard let address = await iterator.next() else {
                try await group.waitForAll()
                throw CancellationError()
            }
            try await body(
                ApplicationFixture(
                    address: address,
                    service: service,
                    beginShutdown: { await services.triggerGracefulShutdown() }
                )
            )
            await services.triggerGracefulShutdown()
            try await group.waitForAll()
        }
    }

    private struct Running: Service {
        let work: @Sendable () async throws -> Void
        func run() async throws { try await work() }
    }
}

/// A request of the endpoint.
///
/// - Parameter fields: header fields, each with its line end.
func request(_ line: String, _ body: String? = nil, fields: String = "") -> String {
    let type = body == nil ? "" : "Content-Type: application/json\r\n"
    let length = body.map { "Content-Length: \($0.utf8.count)\r\n" } ?? ""
    return "\(line) HTTP/1.1\r\nHost: siwad\r\n\(type)\(length)\(fields)\r\n\(body ?? "")"
}

/// A request to sign in whose members are within their bounds.
let signInBody = #"{"client_id":"com.example.app","identity_token":"a.b.c","nonce":"8sIboQ4mZ1x7"}"#
