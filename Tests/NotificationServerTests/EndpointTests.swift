import AppleTokens
import Ingest
import Telemetry
import TestSupport
import Testing

@testable import NotificationServer

@Suite("The notification endpoint", .timeLimit(.minutes(5)))
struct EndpointTests {
    @Test("A notification that is acknowledged is answered 200 without a body, and the connection stays open.")
    func acknowledged() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            for number in 1...3 {
                try await client.send(post("body \(number)"))
                let response = try await client.response()
                #expect(response.status == 200)
                #expect(response.body == "")
                #expect(response.fields["content-length"] == "0")
                #expect(response.fields["date"]?.hasSuffix(" GMT") == true)
                #expect(response.fields["connection"] == nil)
            }
            #expect(server.ingest.bodies == ["body 1", "body 2", "body 3"])
            #expect(server.metrics.registry.prometheusText().contains("siwad_request_duration_seconds_count 3\n"))
        }
    }

    @Test(
        "Each rejection is a problem document whose type ends in the reason, and is counted.",
        arguments: Rejection.allCases
    )
    func rejected(_ rejection: Rejection) async throws {
        try await TestServer.with(StubIngest { _ in .refused(rejection) }) { server in
            let client = try await server.connect()
            try await client.send(post("x"))
            let response = try await client.response()
            #expect(response.status == rejection.status)
            #expect(response.reason == rejection.rawValue)
            #expect(response.fields["content-type"] == "application/problem+json")
            #expect(response.body.contains("\"status\":\(rejection.status)"))
            #expect(server.metrics.rejections.counter(rejection.rawValue).value == 1)
            let metric = "siwad_rejections_total{reason=\"\(rejection.rawValue)\"} 1\n"
            #expect(server.metrics.registry.prometheusText().contains(metric))
        }
    }

    @Test("A notification that cannot be stored is answered 503 with Retry-After.", arguments: Unavailability.allCases)
    func unavailable(_ reason: Unavailability) async throws {
        let ingest = StubIngest { _ in .unavailable(reason, retryAfterSeconds: 17) }
        try await TestServer.with(ingest) { server in
            let client = try await server.connect()
            try await client.send(post("x"))
            let response = try await client.response()
            #expect(response.status == 503)
            #expect(response.fields["retry-after"] == "17")
            #expect(response.reason == reason.rawValue)
            let metric = "siwad_unavailable_total{reason=\"\(reason.rawValue)\"} 1\n"
            #expect(server.metrics.registry.prometheusText().contains(metric))
        }
    }

    @Test("Another path is 404, another method 405 with Allow, and the connection continues after the body.")
    func otherRequests() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send("POST /other HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
            #expect(try await client.response().status == 404)
            try await client.send("GET \(TestServer.path) HTTP/1.1\r\nHost: a\r\n\r\n")
            let refused = try await client.response()
            #expect(refused.status == 405)
            #expect(refused.fields["allow"] == "POST")
            try await client.send("HEAD \(TestServer.path) HTTP/1.1\r\nHost: a\r\n\r\n" + post("after"))
            let head = try await client.response(toHEAD: true)
            #expect(head.status == 405)
            #expect(try await client.response().status == 200)
            #expect(server.ingest.bodies == ["after"])
        }
    }

    @Test("The paths of the operations endpoint are 404.", arguments: ["/metrics", "/livez", "/readyz", "/"])
    func operations(_ path: String) async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send("GET \(path) HTTP/1.1\r\nHost: a\r\n\r\n")
            #expect(try await client.response().status == 404)
        }
    }

    @Test("White space after a field's value changes nothing.", arguments: [" ", "\t", " \t"])
    func whitespace(_ blank: String) async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            let line = "POST \(TestServer.path) HTTP/1.1\r\nHost: a\(blank)\r\n"
            let identity = "Content-Encoding: identity\(blank)\r\n"
            // NIO's decoder accepts spaces but no tabs after the fields that frame the body.
            try await client.send(line + identity + "Content-Length: 3 \r\n\r\none")
            #expect(try await client.response().status == 200)
            try await client.send(line + "Transfer-Encoding: chunked \r\n\r\n3\r\ntwo\r\n0\r\n\r\n")
            #expect(try await client.response().status == 200)
            try await client.send(line + "Expect: 100-continue\(blank)\r\nContent-Length: 5\r\n\r\nthree")
            #expect(try await client.response().status == 100)
            #expect(try await client.response().status == 200)
            #expect(server.ingest.bodies == ["one", "two", "three"])
        }
    }

    @Test("A query is ignored.")
    func query() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send(
                "POST \(TestServer.path)?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
            )
            #expect(try await client.response().status == 200)
        }
    }

    @Test("A body in chunks reaches the receiver whole.")
    func chunks() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send(
                "POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
            )
            try await client.send("2;extension=1\r\nde\r\n0\r\nTrailer: x\r\n\r\n")
            #expect(try await client.response().status == 200)
            #expect(server.ingest.bodies == ["abcde"])
        }
    }

    @Test("A body that arrives byte by byte reaches the receiver whole.")
    func pieces() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            for byte in post("piecemeal") {
                try await client.send(String(byte))
            }
            #expect(try await client.response().status == 200)
            #expect(server.ingest.bodies == ["piecemeal"])
        }
    }

    @Test("Pipelined requests are answered in their order, whatever the order of the decisions.")
    func pipelining() async throws {
        try await TestServer.with(StubIngest { $0 == "now" ? .refused(.malformedBody) : nil }) { server in
            let client = try await server.connect()
            try await client.send(post("1") + post("2") + post("now") + post("3"))
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let first = try #require(await tickets.next())
            let second = try #require(await tickets.next())
            let third = try #require(await tickets.next())
            server.ingest.respond([
                Reply(ticket: third, answer: .refused(.unknownKey)),
                Reply(ticket: second, answer: .refused(.badSignature)),
                Reply(ticket: first, answer: .acknowledged),
            ])
            #expect(try await client.response().status == 200)
            #expect(try await client.response().reason == "bad-signature")
            #expect(try await client.response().reason == "malformed-body")
            #expect(try await client.response().reason == "unknown-key")
        }
    }

    @Test("Pipelined requests above the limit are read as responses are sent, and none is lost.")
    func deepPipelining() async throws {
        var limits = ServerLimits()
        limits.pipelined = 4
        try await TestServer.with(StubIngest { _ in nil }, limits: limits) { server in
            let client = try await server.connect()
            let count = 200
            client.push((0..<count).map { post("\($0)") }.joined())
            var tickets = server.ingest.tickets.makeAsyncIterator()
            for _ in 0..<count {
                let ticket = try #require(await tickets.next())
                server.ingest.respond([Reply(ticket: ticket, answer: .acknowledged)])
                #expect(try await client.response().status == 200)
            }
            #expect(server.ingest.bodies == (0..<count).map { "\($0)" })
        }
    }

    @Test("A client that sends Connection: close gets its response, and then the connection ends.")
    func close() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send(post("x", fields: "Connection: close\r\n"))
            let response = try await client.response()
            #expect(response.status == 200)
            #expect(response.fields["connection"] == "close")
            #expect(await client.rest() == "")
        }
    }

    @Test("HTTP/1.0 is served, one request per connection.")
    func oldVersion() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send("POST \(TestServer.path) HTTP/1.0\r\nContent-Length: 1\r\n\r\nx")
            let response = try await client.response()
            #expect(response.status == 200)
            #expect(response.fields["connection"] == "close")
            #expect(await client.rest() == "")
        }
    }

    @Test("A client that expects 100-continue receives it, unless its request is refused.")
    func expectation() async throws {
        try await TestServer.with { server in
            let head = "POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
            let client = try await server.connect()
            try await client.send(head + "Content-Length: 4\r\n\r\n")
            #expect(try await client.response().status == 100)
            try await client.send("body")
            #expect(try await client.response().status == 200)

            let large = try await server.connect()
            try await large.send(head + "Content-Length: 70000\r\n\r\n")
            #expect(try await large.response().status == 413)
            #expect(await large.rest() == "")

            let unknown = try await server.connect()
            try await unknown.send("POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n")
            #expect(try await unknown.response().status == 417)
        }
    }
}
