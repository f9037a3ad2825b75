import Ingest
import NIOCore
import NIOEmbedded
import NIOHTTP1
import Telemetry
import Testing

@testable import NotificationServer

@Suite("Requests that need no decoding")
struct PlainRequestTests {
    private static let limits = {
        var limits = ServerLimits()
        limits.bodyBytes = 64
        limits.headBytes = 256
        limits.headerFields = 6
        return limits
    }()
    private static let line = "POST /n HTTP/1.1\r\n"

    private func request(in text: String) -> PlainRequest? {
        PlainRequest.Form(path: "/n", limits: Self.limits).request(in: text.utf8.span)
    }

    @Test(
        "A POST to the path with one length and one host is one, and ends where its length says.",
        arguments: [
            "Host: a\r\nContent-Length: 4\r\n\r\n", "host:a \r\nCONTENT-LENGTH:\t4\r\n\r\n",
            "Content-Length: 04\r\nX: \r\nHost: a\r\n\r\n",
            "Host: a\r\nConnection: Keep-Alive\r\nContent-Length: 4\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nX: text/plain; y=\"x y\"\r\n!#$%&'*+-.^_`|~09az: \t~\r\n\r\n",
        ]
    )
    func plain(_ fields: String) {
        let head = Self.line + fields
        let whole = PlainRequest(headLength: head.utf8.count, bodyLength: 4)
        #expect(request(in: head + "body") == whole)
        #expect(request(in: head + "bodyPOST") == whole)
        #expect(request(in: head + "bod") == nil)
        #expect(request(in: String(head.dropLast())) == nil)
    }

    @Test(
        "What has to be weighed is left to the decoder.",
        arguments: [
            "Host: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nConnection: keep-alive, x\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nConnection: keep-alive\r\nConnection: keep-alive\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nConnection:\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nProxy-Connection: close\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nUpgrade: h2c\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nContent-Encoding: identity\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            "Host: a\r\n\r\n", "Content-Length: 4\r\n\r\n",
            "Host: a\r\nHost: a\r\nContent-Length: 4\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n",
            "Host: a\r\nContent-Length: 65\r\n\r\n\(String(repeating: "x", count: 65))",
            "Host: a\r\nContent-Length: 18446744073709551620\r\n\r\n",
            "Host: a\r\nContent-Length: +4\r\n\r\n", "Host: a\r\nContent-Length: 4,4\r\n\r\n",
            "Host: a\r\nContent-Length: 4 \r\n\r\n", "Host: a\r\nContent-Length: 0x4\r\n\r\n",
            "Host: a\r\nContent-Length:\r\n\r\n",
            "Host: a\r\nContent-Length : 4\r\n\r\n", "Host: a\r\n Content-Length: 4\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nX: a\r\n b\r\n\r\n", "Host: a\r\nContent-Length: 4\n\r\n",
            "Host: a\r\nContent-Length: 4\r\n\n", "Host: a\r\nContent-Length: 4\r\n: x\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nX\r\n\r\n", "Host: a\r\nContent-Length: 4\r\nX: a\rb\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nX: a\0b\r\n\r\n", "Host: a\r\nContent-Length: 4\r\nX: \u{7F}\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nX: \u{E9}\r\n\r\n", "Host: a\r\nContent-Length: 4\r\nX(: a\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nA: a\r\nB: b\r\nC: c\r\nD: d\r\nE: e\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nX: \(String(repeating: "x", count: 256))\r\n\r\n",
        ]
    )
    func weighed(_ fields: String) {
        #expect(request(in: Self.line + fields + "body") == nil)
    }

    @Test(
        "Another method, target or version is left to the decoder.",
        arguments: [
            "GET /n HTTP/1.1\r\n", "post /n HTTP/1.1\r\n", "POST /n?a HTTP/1.1\r\n", "POST /N HTTP/1.1\r\n",
            "POST http://a/n HTTP/1.1\r\n", "POST /n HTTP/1.0\r\n", "POST  /n HTTP/1.1\r\n", "\r\nPOST /n HTTP/1.1\r\n",
            "POST /n HTTP/1.1\n", "POST /n\r\n", "PO", "",
        ]
    )
    func otherLine(_ line: String) {
        #expect(request(in: line + "Host: a\r\nContent-Length: 4\r\n\r\nbody") == nil)
    }

    @Test("What is taken without decoding, the decoder and the judgement of heads take as well, with the same body.")
    func decodedAlike() {
        var random = SystemRandomNumberGenerator()
        let seed = "POST /n HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: keep-alive\r\nX: b\r\n\r\nbody"
        let pieces = [
            "\r\n", "\n", "\r", " ", "\t", ":", "0", "4", "a", "\0", "\u{E9}", "Host: a\r\n", "Content-Length: 4\r\n",
            "HTTP/1.0", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n", "close", "Upgrade: a\r\n",
            "Connection: keep-alive\r\n", "POST /n HTTP/1.1\r\n",
        ].map { Array($0.utf8) }
        var taken = 0
        for _ in 0..<20_000 {
            var bytes = Array(seed.utf8)
            for _ in 0..<Int.random(in: 1...2, using: &random) {
                let place = Int.random(in: 0..<bytes.count, using: &random)
                switch Int.random(in: 0..<4, using: &random) {
                case 0: bytes.remove(at: place)
                case 1: bytes[place] = UInt8.random(in: 0...255, using: &random)
                case 2: bytes[place] ^= 0x20
                default: bytes.insert(contentsOf: pieces.randomElement(using: &random) ?? [], at: place)
                }
            }
            let form = PlainRequest.Form(path: "/n", limits: Self.limits)
            guard let request = form.request(in: bytes.span) else { continue }
            taken += 1
            let whole = Array(bytes.prefix(request.headLength + request.bodyLength))
            let text = String(decoding: whole, as: UTF8.self)
            guard let decoded = Self.decode(whole) else {
                Issue.record("not decoded: \(text.debugDescription)")
                continue
            }
            let accepted = RequestInspection.Acceptance(
                contentLength: request.bodyLength,
                expectsContinue: false,
                isLast: false
            )
            #expect(
                RequestInspection(path: "/n", bodyLimit: 64).judge(decoded.head) == .accepted(accepted),
                "\(text.debugDescription)"
            )
            #expect(decoded.body == Array(whole.suffix(request.bodyLength)), "\(text.debugDescription)")
        }
        #expect(taken > 1000, "most changes leave no request that is taken, and the test says nothing")
    }

    @Test("A connection whose requests come whole leaves the decoder nothing, until one comes in pieces.")
    func undecoded() throws {
        let connection = try Connection()
        let post = Self.line + "Host: a\r\nContent-Length: 4\r\n\r\nbody"
        try connection.read(post)
        try connection.read(post + post)
        #expect(connection.decoded.count == 0)
        #expect(connection.bodies.count == 3)

        try connection.read(post + post.prefix(10))
        try connection.read(String(post.dropFirst(10)))
        #expect(connection.decoded.count == 1)
        try connection.read(post)
        #expect(connection.decoded.count == 2)
        #expect(connection.bodies.count == 6)
        #expect(connection.bodies.allSatisfy { $0 == "body" })
        try connection.end()
    }

    /// What the decoder makes of the bytes of one request; `nil`: not exactly one.
    private static func decode(_ bytes: [UInt8]) -> (head: HTTPRequestHead, body: [UInt8])? {
        var limits = NIOHTTPDecoderLimitConfiguration()
        limits.maxHeaderFieldSize = Self.limits.headBytes
        limits.maxHeaderListSize = Self.limits.headBytes
        limits.maxHeaderFieldCount = Self.limits.headerFields
        let channel = EmbeddedChannel(
            handler: ByteToMessageHandler(HTTPRequestDecoder(limitConfiguration: limits))
        )
        defer { _ = try? channel.finish(acceptAlreadyClosed: true) }
        guard (try? channel.writeInbound(ByteBuffer(bytes: bytes))) != nil else { return nil }
        var head: HTTPRequestHead?
        var body: [UInt8] = []
        var ends = 0
        while let part = try? channel.readInbound(as: HTTPServerRequestPart.self) {
            switch part {
            case .head(let decoded):
                guard head == nil else { return nil }
                head = decoded
            case .body(let part): body += part.readableBytesView
            case .end: ends += 1
            }
        }
        return ends == 1 ? head.map { ($0, body) } : nil
    }
}

/// A connection as the server builds it, on an event loop that stands still, with an eye on its decoder.
private final class Connection {
    let decoded = DecodedRequests()
    var bodies: [String] { received.bodies }
    private let received = Bodies()
    private let channel = EmbeddedChannel()

    private final class Bodies {
        var bodies: [String] = []
    }

    init() throws {
        let loop = NotificationLoop(
            eventLoop: channel.embeddedEventLoop,
            path: "/n",
            limits: ServerLimits(),
            connectionLimit: 10,
            metrics: SiwadMetrics(version: "test", appIDs: []),
            lane: LaneInterface { [received] body, _ in
                received.bodies.append(String(decoding: body.indices.map { body[$0] }, as: UTF8.self))
                return .acknowledged
            }
        )
        let connection = NotificationConnection(loop: loop, isSecure: false)
        try connection.join(channel.pipeline.syncOperations)
        try channel.pipeline.syncOperations.addHandler(decoded, position: .before(connection))
        channel.connect(to: try SocketAddress(unixDomainSocketPath: "peer"), promise: nil)
    }

    func read(_ text: String) throws {
        try channel.writeInbound(ByteBuffer(string: text))
    }

    func end() throws {
        _ = try channel.finish(acceptAlreadyClosed: true)
    }
}

/// Counts the heads that the decoder hands on.
private final class DecodedRequests: ChannelInboundHandler {
    typealias InboundIn = HTTPServerRequestPart
    typealias InboundOut = HTTPServerRequestPart

    private(set) var count = 0

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        if case .head = Self.unwrapInboundIn(data) { count += 1 }
        context.fireChannelRead(data)
    }
}
