import AppleTokens
import Ingest
import NIOCore
import TestSupport
import Testing

@testable import NotificationServer

@Suite("Hostile requests", .timeLimit(.minutes(5)))
struct HostileRequestTests {
    private static let line = "POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\n"

    /// Requests that two parsers can read as a different number of requests.
    static let smuggled: [(name: String, request: String)] = [
        ("both lengths", line + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (
            "both lengths, the other way round",
            line + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
        ),
        ("two equal lengths", line + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody"),
        ("two different lengths", line + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nbody"),
        ("a list of lengths", line + "Content-Length: 4, 4\r\n\r\nbody"),
        ("a signed length", line + "Content-Length: +4\r\n\r\nbody"),
        ("a negative length", line + "Content-Length: -4\r\n\r\nbody"),
        ("a hexadecimal length", line + "Content-Length: 0x4\r\n\r\nbody"),
        ("an empty length", line + "Content-Length: \r\n\r\nbody"),
        ("a length beyond 64 bits", line + "Content-Length: 18446744073709551620\r\n\r\nbody"),
        ("a coding other than chunked", line + "Transfer-Encoding: gzip\r\n\r\nbody"),
        ("a coding before chunked", line + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        ("a coding after chunked", line + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        ("chunked twice", line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("a misspelt coding", line + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ("a coding with a vertical tab", line + "Transfer-Encoding: \u{0B}chunked\r\n\r\n0\r\n\r\n"),
        ("a quoted coding", line + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
        ("a space before the colon", line + "Content-Length : 4\r\n\r\nbody"),
        ("a space before the name", line + " Content-Length: 4\r\n\r\nbody"),
        ("a folded field", line + "X: a\r\n b\r\nContent-Length: 4\r\n\r\nbody"),
        ("a folded coding", line + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
        ("a bare line feed after a field", line + "Content-Length: 4\n\r\nbody"),
        ("a bare line feed at the end of the head", line + "Content-Length: 4\r\n\nbody"),
        ("a bare line feed after the request line", "POST \(TestServer.path) HTTP/1.1\nHost: a\r\n\r\n"),
        ("a bare carriage return in a field", line + "X: a\rContent-Length: 4\r\n\r\nbody"),
        ("a NUL in a field", line + "X: a\0b\r\n\r\n"),
        ("an empty name", line + ": x\r\n\r\n"),
        ("a field without a colon", line + "Content-Length\r\n\r\n"),
        ("no host", "POST \(TestServer.path) HTTP/1.1\r\n\r\n"),
        ("two hosts", line + "Host: b\r\n\r\n"),
        ("chunks in HTTP/1.0", "POST \(TestServer.path) HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("a signed chunk size", line + "Transfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n"),
        ("a hexadecimal prefix of a chunk size", line + "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n"),
        ("an empty chunk size", line + "Transfer-Encoding: chunked\r\n\r\n\r\na\r\n0\r\n\r\n"),
        ("a chunk size beyond 64 bits", line + "Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n"),
        ("a chunk that ends in a bare line feed", line + "Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n"),
        ("a chunk longer than its size", line + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n"),
        ("a space after a chunk size", line + "Transfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n"),
        ("no HTTP at all", "\u{16}\u{3}\u{1}\u{2}\r\n\r\n"),
        ("HTTP/2 without a negotiation", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("HTTP/0.9", "POST \(TestServer.path)\r\n\r\n"),
    ]

    @Test(
        "An ambiguous or malformed request is refused, ends the connection and does not reach the receiver.",
        arguments: smuggled
    )
    func smuggling(_ shape: (name: String, request: String)) async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            client.push(shape.request + post("smuggled"))
            let response = try await client.response()
            #expect([400, 505].contains(response.status), "\(shape.name)")
            #expect(response.fields["connection"] == "close", "\(shape.name)")
            #expect(await client.rest() == "", "\(shape.name)")
            #expect(server.ingest.bodies.isEmpty, "\(shape.name)")
        }
    }

    @Test("A Content-Length above the limit is refused before the body is read.")
    func announcedBody() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send(Self.line + "Content-Length: 65537\r\n\r\n")
            let response = try await client.response()
            #expect(response.status == 413)
            #expect(response.reason == "body-too-large")
            #expect(await client.rest() == "")
        }
    }

    @Test("A body of exactly the limit is accepted.")
    func largestBody() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            client.push(post(String(repeating: "x", count: 65_536)))
            #expect(try await client.response().status == 200)
            #expect(server.ingest.bodies.first?.count == 65_536)
        }
    }

    @Test("Endless chunks are refused at the limit, and the response reaches a client that continues to send.")
    func endlessBody() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            client.push(Self.line + "Transfer-Encoding: chunked\r\n\r\n")
            let chunk = "1000\r\n" + String(repeating: "x", count: 4096) + "\r\n"
            for _ in 0..<64 {
                client.push(chunk)
            }
            #expect(try await client.response().status == 413)
            #expect(server.ingest.bodies.isEmpty)
        }
    }

    @Test("A head with too many or too long fields is refused.")
    func largeHead() async throws {
        try await TestServer.with { server in
            let many = try await server.connect()
            many.push(Self.line + (0..<100).map { "X-\($0): a\r\n" }.joined() + "\r\n")
            #expect(try await many.response().status == 431)

            let long = try await server.connect()
            long.push(Self.line + "X: " + String(repeating: "a", count: 20_000))
            #expect(try await long.response().status == 431)

            let target = try await server.connect()
            target.push("POST /" + String(repeating: "a", count: 20_000))
            #expect(try await target.response().status == 431)
        }
    }

    @Test("An encoded body is refused.")
    func encodedBody() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send(post("x", fields: "Content-Encoding: gzip\r\n"))
            #expect(try await client.response().status == 415)
            try await client.send(post("plain", fields: "Content-Encoding: identity\r\n"))
            #expect(try await client.response().status == 200)
            #expect(server.ingest.bodies == ["plain"])
        }
    }

    @Test("Bytes after an upgrade or CONNECT are discarded.")
    func upgrade() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            client.push(post("x", fields: "Connection: upgrade\r\nUpgrade: h2c\r\n") + post("smuggled"))
            let response = try await client.response()
            #expect(response.status == 200)
            #expect(response.fields["connection"] == "close")
            #expect(await client.rest() == "")
            #expect(server.ingest.bodies == ["x"])

            let tunnel = try await server.connect()
            tunnel.push("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n" + post("smuggled"))
            #expect(try await tunnel.response().fields["connection"] == "close")
            #expect(await tunnel.rest() == "")
            #expect(server.ingest.bodies == ["x"])
        }
    }

    @Test("An incomplete head is answered 408 at its deadline.")
    func slowHead() async throws {
        var limits = ServerLimits()
        limits.headDeadline = .milliseconds(500)
        try await TestServer.with(limits: limits) { server in
            let client = try await server.connect()
            try await client.send("POST /app")
            #expect(try await client.response().status == 408)
            #expect(await client.rest() == "")
        }
    }

    @Test("An incomplete body is answered 408 at its deadline.")
    func slowBody() async throws {
        var limits = ServerLimits()
        limits.bodyDeadline = .milliseconds(500)
        try await TestServer.with(limits: limits) { server in
            let client = try await server.connect()
            try await client.send(Self.line + "Content-Length: 100\r\n\r\nx")
            let response = try await client.response()
            #expect(response.status == 408)
            #expect(response.fields["connection"] == "close")
            #expect(server.ingest.bodies.isEmpty)
        }
    }

    @Test("A silent connection is closed without a response.")
    func silence() async throws {
        var limits = ServerLimits()
        // Long enough for an honest request on a busy machine.
        limits.idleDeadline = .seconds(1)
        try await TestServer.with(limits: limits) { server in
            let client = try await server.connect()
            #expect(await client.rest() == "")
            let used = try await server.connect()
            try await used.send(post("x"))
            #expect(try await used.response().status == 200)
            #expect(await used.rest() == "")
        }
    }

    @Test("A request without a decision in time is answered 503, and the late decision is dropped.")
    func lateResponse() async throws {
        var limits = ServerLimits()
        // Long enough for the second response to come in time on a busy machine.
        limits.responseDeadline = .seconds(3)
        try await TestServer.with(StubIngest { _ in nil }, limits: limits) { server in
            let client = try await server.connect()
            try await client.send(post("1"))
            let response = try await client.response()
            #expect(response.status == 503)
            #expect(response.reason == "answer-timeout")
            #expect(response.fields["retry-after"] != nil)
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let late = try #require(await tickets.next())
            try await client.send(post("2"))
            let current = try #require(await tickets.next())
            server.ingest.respond([
                Reply(ticket: late, answer: .refused(.badSignature)), Reply(ticket: current, answer: .acknowledged),
            ])
            #expect(try await client.response().status == 200)
        }
    }

    @Test("A request that times out does not affect the next one.")
    func lateResponseBeforeAnUnfinishedBody() async throws {
        var limits = ServerLimits()
        limits.responseDeadline = .milliseconds(500)
        try await TestServer.with(StubIngest { $0 == "slow" ? nil : .acknowledged }, limits: limits) { server in
            let client = try await server.connect()
            try await client.send(post("slow") + Self.line + "Content-Length: 9\r\n\r\nunbro")
            #expect(try await client.response().status == 503)
            try await client.send("ken.")
            #expect(try await client.response().status == 200)
            #expect(server.ingest.bodies == ["slow", "unbroken."])
        }
    }

    @Test("Incomplete heads share a budget; above it the oldest are closed.")
    func unfinishedHeads() async throws {
        var limits = ServerLimits()
        limits.unfinishedBytes = 10_000
        try await TestServer.with(limits: limits) { server in
            let head = Self.line + "X: " + String(repeating: "a", count: 6000)
            let oldest = try await server.connect()
            try await oldest.send(head)
            // A response on another connection shows that the first was read.
            let other = try await server.connect()
            try await other.send(post("x"))
            #expect(try await other.response().status == 200)
            let youngest = try await server.connect()
            try await youngest.send(head)
            #expect(await oldest.rest() == "")
            try await youngest.send("\r\nContent-Length: 1\r\n\r\nx")
            #expect(try await youngest.response().status == 200)
        }
    }

    @Test("Incomplete bodies share a budget; above it the oldest are closed.")
    func unfinishedBodies() async throws {
        var limits = ServerLimits()
        limits.unfinishedBytes = 30_000
        try await TestServer.with(limits: limits) { server in
            let head = Self.line + "Content-Length: 20000\r\n\r\n"
            let oldest = try await server.connect()
            try await oldest.send(head + String(repeating: "a", count: 16_000))
            // A response on another connection shows that the first was read.
            let other = try await server.connect()
            try await other.send(post("x"))
            #expect(try await other.response().status == 200)
            let youngest = try await server.connect()
            try await youngest.send(head + String(repeating: "b", count: 19_000))
            #expect(await oldest.rest() == "")
            try await youngest.send(String(repeating: "b", count: 1000))
            #expect(try await youngest.response().status == 200)
        }
    }
}
