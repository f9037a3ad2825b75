import Ingest
import Telemetry
import TestSupport
import Testing

@testable import NotificationServer

@Suite("The connection limit", .timeLimit(.minutes(5)))
struct ConnectionLimitTests {
    @Test("At the limit, the connection that was silent for the longest time is closed.")
    func silentGoFirst() async throws {
        var limits = ServerLimits()
        limits.connections = 3
        try await TestServer.with(limits: limits) { server in
            var clients: [RawClient] = []
            for number in 0..<3 {
                let client = try await server.connect()
                try await client.send(post("\(number)"))
                #expect(try await client.response().status == 200)
                clients.append(client)
            }
            // The first connection is the last one to send a request.
            try await clients[0].send(post("again"))
            #expect(try await clients[0].response().status == 200)
            let newcomer = try await server.connect()
            #expect(await clients[1].rest() == "")
            for client in [newcomer, clients[0], clients[2]] {
                try await client.send(post("still here"))
                #expect(try await client.response().status == 200)
            }
            #expect(server.metrics.evictedConnections.value == 1)
        }
    }

    @Test("The oldest incomplete request is closed next, and a request that waits for its response never.")
    func waitingStay() async throws {
        var limits = ServerLimits()
        limits.connections = 2
        try await TestServer.with(StubIngest { $0 == "wait" ? nil : .acknowledged }, limits: limits) { server in
            let waiting = try await server.connect()
            try await waiting.send(post("wait"))
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let ticket = try #require(await tickets.next())
            let slow = try await server.connect()
            try await slow.send("POST /slow")
            let newcomer = try await server.connect()
            #expect(await slow.rest() == "")
            try await newcomer.send(post("x"))
            #expect(try await newcomer.response().status == 200)
            server.ingest.respond([Reply(ticket: ticket, answer: .acknowledged)])
            #expect(try await waiting.response().status == 200)
        }
    }

    @Test("If every connection waits for a response, a new connection is closed.")
    func everyoneWaits() async throws {
        var limits = ServerLimits()
        limits.connections = 1
        try await TestServer.with(StubIngest { _ in nil }, limits: limits) { server in
            let waiting = try await server.connect()
            try await waiting.send(post("wait"))
            var tickets = server.ingest.tickets.makeAsyncIterator()
            let ticket = try #require(await tickets.next())
            let newcomer = try await server.connect()
            #expect(await newcomer.rest() == "")
            server.ingest.respond([Reply(ticket: ticket, answer: .acknowledged)])
            #expect(try await waiting.response().status == 200)
        }
    }

    @Test("A genuine sender is answered while a thousand silent connections keep coming.")
    func flood() async throws {
        var limits = ServerLimits()
        limits.connections = 64
        try await TestServer.with(limits: limits) { server in
            var silent: [RawClient] = []
            for number in 0..<1000 {
                silent.append(try await server.connect())
                if number % 50 == 0 {
                    let genuine = try await server.connect()
                    try await genuine.send(post("\(number)", fields: "Connection: close\r\n"))
                    #expect(try await genuine.response().status == 200)
                }
            }
            #expect(server.metrics.connections.value <= 66)
            for client in silent {
                // Most of them were closed long ago.
                try? await client.disconnect()
            }
        }
    }
}
