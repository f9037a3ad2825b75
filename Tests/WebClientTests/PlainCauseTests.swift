import Glibc
import NIOCore
import NIOHTTP1
import NIOPosix
import Testing

@testable import WebClient

@Suite("The cause of a missing response", .timeLimit(.minutes(5)))
struct PlainCauseTests {
    private let group = MultiThreadedEventLoopGroup.singleton
    private let closed = "the connection was closed before an answer came"

    private func cause(of error: any Error) -> String {
        PlainCause.words(for: error, from: "https://example.com/a")
    }

    @Test("Errors of each library have plain descriptions.")
    func words() {
        #expect(cause(of: IOError(errnoCode: ECONNREFUSED, reason: "connect(descriptor:)")) == "connection refused")
        #expect(cause(of: ChannelError.connectTimeout(.seconds(5))) == "no answer in time")
        for error in [ChannelError.eof, .inputClosed, .outputClosed, .ioOnClosedChannel, .alreadyClosed] {
            #expect(cause(of: error) == closed)
        }
        #expect(cause(of: HTTPParserError.invalidEOFState) == closed)
        #expect(cause(of: HTTPParserError.invalidConstant) == "the answer is not HTTP")
        #expect(cause(of: NIOTooManyBytesError(maxBytes: 9)) == "the answer is too long")
        #expect(cause(of: CancellationError()) == "interrupted")
    }

    @Test("An unexpected error has a general description.")
    func unexpected() {
        struct Surprise: Error {}
        #expect(cause(of: Surprise()) == "the connection failed")
        #expect(cause(of: ChannelError.operationUnsupported) == "the connection failed")
    }

    @Test("An untrusted certificate is distinguished from other failures of the handshake.")
    func handshake() {
        func cause(_ report: String) -> String { PlainCause.words(forHandshake: report, with: "example.com") }
        let reports = ["CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "SSLV3_ALERT_HANDSHAKE_FAILURE"].map {
            "sslError([Error: 268435581 error:1000007d:SSL routines:OPENSSL_internal:\($0) at /src/handshake.cc:320])"
        }
        #expect(
            cause(reports[0])
                == "this machine does not trust the certificate of example.com "
                + "(use one of a known authority, or http: to a loopback address)"
        )
        for report in reports.dropFirst() + ["syscallError"] {
            #expect(cause(report) == "the TLS handshake with example.com failed (perhaps it speaks http: only)")
        }
        #expect(
            cause("sslError([Error:  EOF during handshake])")
                == "example.com closed the connection in the TLS handshake"
        )
    }

    @Test(
        "Sending and fetching describe the same failure in the same words.",
        arguments: [
            ("", "the connection was closed before an answer came"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "the connection was closed before an answer came"),
            ("nonsense\r\n\r\n", "the answer is not HTTP"),
            ("HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n", "the answer is not HTTP"),
            ("HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\n{}", "the answer is not HTTP"),
        ]
    )
    func answers(_ answer: String, _ cause: String) async throws {
        try await StubWebServer.with(answering: answer, on: group) { server in
            let url = "http://127.0.0.1:\(server.port)/"
            let sender = try NotificationSender(url: url, version: "1", eventLoopGroup: group)
            let summary = try await sender.send(count: 1) { _ in [] }
            #expect(summary.firstFailure == cause)
            let fetcher = KeySetFetcher(url: try KeySetURL(parsing: url), version: "1", eventLoopGroup: group)
            let error = await #expect(throws: WebClientError.self) { _ = try await fetcher.fetch() }
            #expect(error?.message == "cannot reach \(url): \(cause); check the network and the URL")
        }
    }

    @Test("The description of a failed TLS handshake has the host and no password.")
    func noTLS() async throws {
        let channel = try await ServerBootstrap(group: group)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(Refusing())
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        let url = "https://user:secret@127.0.0.1:\(channel.localAddress?.port ?? 0)/a@b"
        let sender = try NotificationSender(url: url, version: "1", eventLoopGroup: group)
        let summary = try await sender.send(count: 1) { _ in [] }
        #expect(summary.firstFailure == "the TLS handshake with 127.0.0.1 failed (perhaps it speaks http: only)")
        try await channel.close()
    }

    /// Answers the first bytes in plain HTTP.
    private final class Refusing: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            let answer = ByteBuffer(string: "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            context.writeAndFlush(Self.wrapOutboundOut(answer), promise: nil)
        }
    }
}
