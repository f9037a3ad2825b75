import Ingest
import NIOCore
import NIOEmbedded
import Telemetry
import TestSupport
import Testing

@testable import NotificationServer

@Suite("The limits and the framing of requests")
struct RequestFramingTests {
    private static let line = "POST /n HTTP/1.1\r\n"

    @Test(
        "A POST to the path with one length and one host is accepted, and ends where its length says.",
        arguments: [
            "Host: a\r\nContent-Length: 4\r\n\r\n", "host:a \r\nCONTENT-LENGTH:\t4\r\n\r\n",
            "Content-Length: 04\r\nX: \r\nHost: a\r\n\r\n",
            "Host: a\r\nConnection: Keep-Alive\r\nContent-Length: 4\r\n\r\n",
            "Host: a\r\nContent-Length: 4\r\nX: text/plain; y=\"x y\"\r\n!#$%&'*+-.^_`|~09az: \t~\r\n\r\n",
        ]
    )
    func accepted(_ fields: String) throws {
        let request = Self.line + fields + "body"
        #expect(try Received(request) == Received(bodies: ["body"], statuses: [200]))
        #expect(try Received(request + request) == Received(bodies: ["body", "body"], statuses: [200, 200]))
        #expect(try Received(String(request.dropLast())) == Received(bodies: [], statuses: []))
        #expect(try Received(Self.line + fields.dropLast()) == Received(bodies: [], statuses: []))
    }

    @Test(
        "Each field that affects the framing or the connection is accepted or refused by its own rule.",
        arguments: [
            ("Host: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nConnection: keep-alive, x\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nConnection: keep-alive\r\nConnection: keep-alive\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nConnection:\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nProxy-Connection: close\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", [100, 200]),
            ("Host: a\r\nContent-Length: 4\r\nUpgrade: h2c\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nContent-Encoding: identity\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n", [400]),
            ("Host: a\r\nTransfer-Encoding: chunked\r\n\r\n", [400]),
            ("Content-Length: 4\r\n\r\n", [400]),
            ("Host: a\r\nHost: a\r\nContent-Length: 4\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 65\r\n\r\n\(String(repeating: "x", count: 65))", [413]),
            ("Host: a\r\nContent-Length: 18446744073709551620\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: +4\r\n\r\n", [400]), ("Host: a\r\nContent-Length: 4,4\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4 \r\n\r\n", [200]), ("Host: a\r\nContent-Length: 0x4\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length:\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length : 4\r\n\r\n", [400]), ("Host: a\r\n Content-Length: 4\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nX: a\r\n b\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\n\n", [400]), ("Host: a\r\nContent-Length: 4\r\n: x\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nX\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nX: a\rb\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nX: a\0b\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nX: \u{7F}\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nX: \u{E9}\r\n\r\n", [200]),
            ("Host: a\r\nContent-Length: 4\r\nX(: a\r\n\r\n", [400]),
            ("Host: a\r\nContent-Length: 4\r\nA: a\r\nB: b\r\nC: c\r\nD: d\r\nE: e\r\n\r\n", [431]),
            ("Host: a\r\nContent-Length: 4\r\nX: \(String(repeating: "x", count: 256))\r\n\r\n", [431]),
        ]
    )
    func fields(_ fields: String, _ statuses: [Int]) throws {
        let bodies = statuses.last == 200 ? ["body"] : []
        #expect(try Received(Self.line + fields + "body") == Received(bodies: bodies, statuses: statuses))
    }

    @Test("A request without a length has no body: the bytes after it are the next request.")
    func noLength() throws {
        let received = try Received(Self.line + "Host: a\r\n\r\nbody")
        #expect(received.bodies == [""])
        #expect(received.statuses.first == 200)
    }

    @Test(
        "Each form of the request line is accepted or refused by its own rule.",
        arguments: [
            ("GET /n HTTP/1.1\r\n", 405), ("post /n HTTP/1.1\r\n", 400), ("POST /n?a HTTP/1.1\r\n", 200),
            ("POST /N HTTP/1.1\r\n", 404), ("POST http://a/n HTTP/1.1\r\n", 200), ("POST /n HTTP/1.0\r\n", 200),
            ("POST  /n HTTP/1.1\r\n", 200), ("\r\nPOST /n HTTP/1.1\r\n", 200), ("POST /n HTTP/1.1\n", 505),
            ("POST /n\r\n", 505), ("PO", 400), ("", 400),
        ]
    )
    func requestLine(_ line: String, _ status: Int) throws {
        let received = try Received(line + "Host: a\r\nContent-Length: 4\r\n\r\nbody")
        #expect(received == Received(bodies: status == 200 ? ["body"] : [], statuses: [status]))
    }

    @Test("How a stream is cut into reads changes neither the bodies nor the responses.")
    func cuts() throws {
        var random = SystemRandomNumberGenerator()
        let seed = "POST /n HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: keep-alive\r\nX: b\r\n\r\nbody"
        let pieces = [
            "\r\n", "\n", "\r", " ", "\t", ":", "0", "4", "a", "\0", "\u{E9}", "Host: a\r\n", "Content-Length: 4\r\n",
            "HTTP/1.0", "Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n", "close", "Upgrade: a\r\n",
            "Connection: keep-alive\r\n", "POST /n HTTP/1.1\r\n",
        ].map { Array($0.utf8) }
        var accepted = 0
        for _ in 0..<2_000 {
            var bytes = Array((seed + seed).utf8)
            for _ in 0..<Int.random(in: 1...2, using: &random) {
                let place = Int.random(in: 0..<bytes.count, using: &random)
                switch Int.random(in: 0..<4, using: &random) {
                case 0: bytes.remove(at: place)
                case 1: bytes[place] = UInt8.random(in: 0...255, using: &random)
                case 2: bytes[place] ^= 0x20
                default: bytes.insert(contentsOf: pieces.randomElement(using: &random) ?? [], at: place)
                }
            }
            let whole = try Received([bytes])
            let cut = Int.random(in: 0...bytes.count, using: &random)
            let text = String(decoding: bytes, as: UTF8.self)
            #expect(try Received([Array(bytes[..<cut]), Array(bytes[cut...])]) == whole, "\(text.debugDescription)")
            #expect(try Received(bytes.map { [$0] }) == whole, "\(text.debugDescription)")
            accepted += whole.bodies.count
        }
        #expect(accepted > 1_000, "most changes leave no request that is accepted, so the test proves little")
    }

    @Test("A body in one piece is not counted as unfinished, and pieces are counted until they are used.")
    func countedBytes() throws {
        final class Counts {
            weak var connection: NotificationConnection?
            var received: [Int] = []
        }
        let channel = EmbeddedChannel()
        let counts = Counts()
        let (loop, connection) = try makeConnection(on: channel) { _, _ in
            counts.received.append(counts.connection?.unfinishedBytes ?? -1)
            return .acknowledged
        }
        counts.connection = connection
        func send(_ text: String) throws -> Int {
            try channel.writeInbound(ByteBuffer(string: text))
            #expect(loop.unfinishedBytes == connection.unfinishedBytes)
            return connection.unfinishedBytes
        }
        let head = Self.line + "Host: a\r\nContent-Length: 4\r\n\r\n"
        #expect(try send(head + "body") == 0)
        #expect(try send(head) == 0)
        #expect(try send("body") == 0)
        #expect(try send(Self.line) == Self.line.utf8.count)
        #expect(try send("Host: a\r\nContent-Length: 4\r\n\r\nbo") == 2)
        #expect(try send("d") == 3)
        #expect(try send("y") == 0)
        #expect(counts.received == [0, 0, 4])
        #expect(try send(head + "bo") == 2)
        _ = try channel.finish(acceptAlreadyClosed: true)
        #expect(loop.unfinishedBytes == 0)
    }
}

/// Builds a connection as the server does, with limits that a short text reaches.
private func makeConnection(
    on channel: EmbeddedChannel,
    receive: @escaping RequestReceiver
) throws -> (NotificationLoop, NotificationConnection) {
    var limits = ServerLimits()
    limits.bodyBytes = 64
    limits.headBytes = 256
    limits.headerFields = 6
    let loop = NotificationLoop(
        eventLoop: channel.embeddedEventLoop,
        path: "/n",
        limits: limits,
        connectionLimit: 10,
        metrics: SiwadMetrics(version: "test", appIDs: []),
        receive: receive
    )
    let connection = try NotificationConnection.add(to: channel.pipeline.syncOperations, loop: loop)
    channel.connect(to: try SocketAddress(unixDomainSocketPath: "peer"), promise: nil)
    return (loop, connection)
}

/// The result of a stream of bytes on a connection.
private struct Received: Equatable {
    var bodies: [String]
    var statuses: [Int]
}

extension Received {
    private final class Bodies {
        var texts: [String] = []
    }

    init(_ text: String) throws {
        try self.init([Array(text.utf8)])
    }

    /// Sends each element as one read.
    init(_ reads: [[UInt8]]) throws {
        let channel = EmbeddedChannel()
        let bodies = Bodies()
        _ = try makeConnection(on: channel) { body, _ in
            bodies.texts.append(String(decoding: body.indices.map { body[$0] }, as: UTF8.self))
            return .acknowledged
        }
        for read in reads where channel.isActive {
            try channel.writeInbound(ByteBuffer(bytes: read))
        }
        var sent = ""
        while let bytes = try channel.readOutbound(as: ByteBuffer.self) { sent += String(buffer: bytes) }
        _ = try channel.finish(acceptAlreadyClosed: true)
        let statuses = sent.split(separator: "HTTP/1.1 ").compactMap { Int($0.prefix(3)) }
        self.init(bodies: bodies.texts, statuses: statuses)
    }
}
