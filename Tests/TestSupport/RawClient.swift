package import NIOCore
import NIOPosix
package import NIOSSL

/// A client that sends exactly the given bytes and parses responses as they arrive.
package final class RawClient {
    package struct Response: Equatable {
        package var status: Int
        /// By lower-case name.
        package var fields: [String: String]
        package var body: String

        /// The reason at the end of a problem's `type`.
        package var reason: String? {
            body.firstRange(of: "\"urn:siwad:problem:").map { start in
                String(body[start.upperBound...].prefix { $0 != "\"" })
            }
        }
    }

    package struct NoResponse: Error {}

    private let channel: any Channel
    private var incoming: AsyncStream<ByteBuffer>.Iterator
    private var received = ByteBuffer()

    private init(_ channel: any Channel, _ incoming: AsyncStream<ByteBuffer>) {
        self.channel = channel
        self.incoming = incoming.makeAsyncIterator()
    }

    /// Connects to a port of this machine, with TLS if there is a context for it.
    package static func connect(
        to port: Int,
        on group: any EventLoopGroup,
        tls: NIOSSLContext? = nil
    ) async throws -> RawClient {
        try await connect(to: SocketAddress(ipAddress: "127.0.0.1", port: port), on: group, tls: tls)
    }

    /// Connects to a port of this machine with TLS, if its certificate is the one in this file.
    package static func connect(
        to port: Int,
        on group: any EventLoopGroup,
        trusting certificate: String
    ) async throws -> RawClient {
        var configuration = TLSConfiguration.makeClientConfiguration()
        configuration.trustRoots = .file(certificate)
        configuration.certificateVerification = .noHostnameVerification
        return try await connect(to: port, on: group, tls: NIOSSLContext(configuration: configuration))
    }

    /// Connects to a socket in the file system.
    package static func connect(toSocket path: String, on group: any EventLoopGroup) async throws -> RawClient {
        try await connect(to: SocketAddress(unixDomainSocketPath: path), on: group, tls: nil)
    }

    private static func connect(
        to address: SocketAddress,
        on group: any EventLoopGroup,
        tls: NIOSSLContext?
    ) async throws -> RawClient {
        let (stream, continuation) = AsyncStream.makeStream(of: ByteBuffer.self)
        let channel = try await ClientBootstrap(group: group)
            .channelOption(.allowRemoteHalfClosure, value: false)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    if let tls {
                        try channel.pipeline.syncOperations.addHandler(
                            NIOSSLClientHandler(context: tls, serverHostname: nil)
                        )
                    }
                    try channel.pipeline.syncOperations.addHandler(Collector(continuation))
                }
            }
            .connect(to: address).get()
        return RawClient(channel, stream)
    }

    package func send(_ text: String) async throws {
        try await channel.writeAndFlush(ByteBuffer(string: text)).get()
    }

    /// Sends these bytes and ignores a failure.
    package func push(_ text: String) {
        channel.writeAndFlush(ByteBuffer(string: text), promise: nil)
    }

    /// Closes the sending side.
    package func finishSending() async throws {
        try await channel.close(mode: .output).get()
    }

    package func disconnect() async throws {
        try await channel.close().get()
    }

    package func response(toHEAD: Bool = false) async throws -> Response {
        while true {
            if let response = parse(toHEAD: toHEAD) { return response }
            guard let more = await incoming.next(isolation: #isolation) else { throw NoResponse() }
            received.writeImmutableBuffer(more)
        }
    }

    /// The bytes that arrive until the server closes the connection.
    package func rest() async -> String {
        while let more = await incoming.next(isolation: #isolation) {
            received.writeImmutableBuffer(more)
        }
        return String(buffer: received)
    }

    private func parse(toHEAD: Bool) -> Response? {
        let text = String(buffer: received)
        guard let end = text.firstRange(of: "\r\n\r\n") else { return nil }
        let lines = text[..<end.lowerBound].split(separator: "\r\n")
        guard let status = lines.first?.split(separator: " ").dropFirst().first.flatMap({ Int($0) }) else { return nil }
        var fields: [String: String] = [:]
        for line in lines.dropFirst() {
            let parts = line.split(separator: ": ", maxSplits: 1)
            fields[parts[0].lowercased()] = parts.count > 1 ? String(parts[1]) : ""
        }
        let length = toHEAD ? 0 : fields["content-length"].flatMap { Int($0) } ?? 0
        let headLength = text[..<end.upperBound].utf8.count
        guard received.readableBytes >= headLength + length else { return nil }
        received.moveReaderIndex(forwardBy: headLength)
        let body = received.readString(length: length) ?? ""
        received.discardReadBytes()
        return Response(status: status, fields: fields, body: body)
    }

    private final class Collector: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer

        private let continuation: AsyncStream<ByteBuffer>.Continuation

        init(_ continuation: AsyncStream<ByteBuffer>.Continuation) {
            self.continuation = continuation
        }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            continuation.yield(Self.unwrapInboundIn(data))
        }

        func channelInactive(context: ChannelHandlerContext) {
            continuation.finish()
        }

        func errorCaught(context: ChannelHandlerContext, error: any Error) {
            context.close(promise: nil)
        }
    }
}
