import Ingest
import TestSupport
import Testing

@Suite("Clients that disconnect early, and servers that shut down", .timeLimit(.minutes(5)))
struct DisconnectTests {
    @Test("A client that disconnects before its response does not affect other clients.")
    func earlyDisconnect() async throws {
        try await TestServer.with(StubIngest { _ in nil }) { server in
            let client = try await server.connect()
            try await client.send(post("1") + post("2"))
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let first = try #require(await tickets.next())
            let second = try #require(await tickets.next())
            try await client.disconnect()
            let other = try await server.connect()
            try await other.send(post("3"))
            let third = try #require(await tickets.next())
            server.ingest.respond([first, second, third].map { Reply(ticket: $0, answer: .acknowledged) })
            #expect(try await other.response().status == 200)
        }
    }

    @Test("The incomplete body of a client that disconnects is discarded.")
    func halfABody() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send("POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")
            try await client.disconnect()
            let other = try await server.connect()
            try await other.send(post("x"))
            #expect(try await other.response().status == 200)
            #expect(server.ingest.bodies == ["x"])
        }
    }

    @Test("A client that has closed its sending side still receives its responses.")
    func halfClosed() async throws {
        try await TestServer.with(StubIngest { _ in nil }) { server in
            let client = try await server.connect()
            try await client.send(post("1") + post("2"))
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let first = try #require(await tickets.next())
            let second = try #require(await tickets.next())
            try await client.finishSending()
            server.ingest.respond([first, second].map { Reply(ticket: $0, answer: .acknowledged) })
            #expect(try await client.response().status == 200)
            #expect(try await client.response().status == 200)
            #expect(await client.rest() == "")
        }
    }

    @Test("A client that closes its sending side within a request receives 400.")
    func cutShort() async throws {
        try await TestServer.with { server in
            let client = try await server.connect()
            try await client.send("POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")
            try await client.finishSending()
            #expect(try await client.response().status == 400)
            #expect(await client.rest() == "")
            #expect(server.ingest.bodies.isEmpty)
        }
    }

    @Test("A shutdown closes idle connections and answers pending requests with Connection: close.")
    func drain() async throws {
        try await TestServer.with(StubIngest { _ in nil }) { server in
            let idle = try await server.connect()
            let busy = try await server.connect()
            try await busy.send(post("x"))
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let ticket = try #require(await tickets.next())
            await server.beginShutdown()
            #expect(await idle.rest() == "")
            server.ingest.respond([Reply(ticket: ticket, answer: .acknowledged)])
            let response = try await busy.response()
            #expect(response.status == 200)
            #expect(response.fields["connection"] == "close")
            #expect(await busy.rest() == "")
            await #expect(throws: (any Error).self) { _ = try await server.connect() }
        }
    }

    @Test("During a shutdown a request whose body is still arriving is completed.")
    func drainUnfinishedBody() async throws {
        try await TestServer.with(StubIngest { _ in nil }) { server in
            let idle = try await server.connect()
            let began = try await server.connect()
            try await began.send("POST \(TestServer.path) HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo")
            let busy = try await server.connect()
            try await busy.send(post("x"))
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let first = try #require(await tickets.next())
            await server.beginShutdown()
            #expect(await idle.rest() == "")

            try await began.send("dy")
            let second = try #require(await tickets.next())
            server.ingest.respond([Reply(ticket: second, answer: .acknowledged)])
            #expect(try await began.response().status == 200)
            #expect(await began.rest() == "")

            server.ingest.respond([Reply(ticket: first, answer: .acknowledged)])
            #expect(try await busy.response().status == 200)
            #expect(await busy.rest() == "")
        }
    }

    @Test("A server that has ended releases its receiver.")
    func nothingIsHeld() async throws {
        weak var ingest: StubIngest?
        func run() async throws {
            let stub = StubIngest()
            ingest = stub
            try await TestServer.with(stub) { _ in }
        }
        try await run()
        // The task of a server is released shortly after it has ended.
        let deadline = ContinuousClock.now + .seconds(60)
        while ingest != nil, .now < deadline { await Task.yield() }
        #expect(ingest == nil)
    }
}
