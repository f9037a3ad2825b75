import Basics
import NIOCore
import NIOPosix
import Synchronization
import Testing

@testable import WebClient

@Suite("The client of the token endpoint", .timeLimit(.minutes(5)))
struct TokenEndpointClientTests {
    private let group = MultiThreadedEventLoopGroup.singleton

    private static let success = #"{"access_token":"a","token_type":"Bearer","refresh_token":"r","id_token":"i"}"#

    private static func response(_ status: Int, _ body: String, _ fields: String = "") -> String {
        "HTTP/1.1 \(status) X\r\n\(fields)Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
    }

    private func send(
        to port: Int,
        budget: Duration = .seconds(6),
        times: Int = 1
    ) async throws -> [TokenEndpointClient.Dated] {
        let grant = TokenGrant.code("c1", redirectURI: nil, clientID: "com.a", clientSecret: "s")
        return try await TokenEndpointClient.with(
            url: try AppleURL(parsing: "http://127.0.0.1:\(port)"),
            version: "1.2.3",
            eventLoopGroup: group
        ) { client in
            var answers: [TokenEndpointClient.Dated] = []
            for _ in 0..<times { answers.append(await client.send(grant, budget: budget)) }
            return answers
        }
    }

    private func expect(
        _ response: String,
        _ cause: Unavailability.Cause,
        requests: Int,
        closes: Bool = true,
        budget: Duration = .seconds(6),
        _ location: SourceLocation = #_sourceLocation
    ) async throws {
        try await StubWebServer.with(answering: response, closes: closes, on: group) { server in
            let answer = try await send(to: server.port, budget: budget)[0].answer
            #expect(answer == .unavailable(Unavailability(cause)), sourceLocation: location)
            #expect(server.received.count == requests, sourceLocation: location)
        }
    }

    @Test("A grant is a form, sent once, without a coding of the answer; the answer comes with Apple's date.")
    func success() async throws {
        let response = Self.response(200, Self.success, "Date: Wed, 25 Nov 2026 00:00:00 GMT\r\n")
        try await StubWebServer.with(answering: response, on: group) { server in
            let dated = try await send(to: server.port)[0]
            guard case .issued(let tokens) = dated.answer else {
                Issue.record("\(dated.answer)")
                return
            }
            #expect(tokens.refreshToken == "r" && dated.date == "Wed, 25 Nov 2026 00:00:00 GMT")
            let request = try #require(server.received.first)
            #expect(server.received.count == 1)
            #expect(request.hasPrefix("POST /auth/token HTTP/1.1\r\n"))
            #expect(request.lowercased().contains("\r\ncontent-type: application/x-www-form-urlencoded\r\n"))
            #expect(request.lowercased().contains("\r\naccept-encoding: identity\r\n"))
            #expect(request.hasSuffix("\r\n\r\nclient_id=com.a&client_secret=s&code=c1&grant_type=authorization_code"))
        }
    }

    @Test("A connection stays open for the next grant.")
    func keepAlive() async throws {
        try await StubWebServer.with(answering: Self.response(200, Self.success), closes: false, on: group) { server in
            let answers = try await send(to: server.port, times: 3)
            #expect(answers.count == 3)
            #expect(server.received.count == 3)
        }
    }

    @Test("After a connection that broke, the grant is sent once more and not again.")
    func broken() async throws {
        try await expect("", .broken, requests: 2)
        try await expect("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", .broken, requests: 2)
    }

    @Test("If only the first connection breaks, the second attempt has an answer, which says that it is the second.")
    func brokenOnce() async throws {
        let refusal = TokenRefusal(code: .invalidGrant, detail: .unspecified)
        for first in ["", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"] {
            let success = Self.response(200, Self.success)
            try await StubWebServer.with(answering: success, first: first, on: group) { server in
                let dated = try await send(to: server.port)[0]
                guard case .issued(let tokens) = dated.answer else {
                    Issue.record("\(dated.answer)")
                    return
                }
                #expect(tokens.refreshToken == "r" && dated.isRepeated)
                #expect(server.received.count == 2 && Set(server.received).count == 1)
            }
            let refused = Self.response(400, #"{"error":"invalid_grant"}"#)
            try await StubWebServer.with(answering: refused, first: first, on: group) { server in
                let dated = try await send(to: server.port)[0]
                #expect(dated.answer == .grantRefused(refusal) && dated.isRepeated)
                #expect(server.received.count == 2)
            }
        }
        try await StubWebServer.with(answering: Self.response(200, Self.success), on: group) { server in
            let dated = try await send(to: server.port)[0]
            #expect(!dated.isRepeated)
        }
    }

    /// Knows `localhost` unless it is set to fail.
    private final class NameServer: Sendable {
        let fails = Mutex(false)
        let lookUps = Mutex(0)

        func lookUp(_ host: String) throws(WebClientError) -> [IPAddress] {
            lookUps.withLock { $0 += 1 }
            if fails.withLock(\.self) { throw WebClientError(.unreachable, "the name server could not answer") }
            return [IPAddress("127.0.0.1")].compactMap(\.self)
        }
    }

    @Test("After a failure, nothing is sent before the name server knows the host; otherwise it is not asked.")
    func names() async throws {
        let names = NameServer()
        let grant = TokenGrant.code("c1", redirectURI: nil, clientID: "com.a", clientSecret: "s")
        func attempts(_ port: Int, _ body: (TokenEndpointClient) async -> Void) async throws {
            let client = try TokenEndpointClient(
                url: try AppleURL(parsing: "http://localhost:\(port)"),
                version: "1.2.3",
                eventLoopGroup: group,
                resolver: WebClient.Resolver(lookUp: names.lookUp)
            )
            await body(client)
            await client.close()
        }
        try await StubWebServer.with(answering: Self.response(500, "x"), closes: false, on: group) { server in
            try await attempts(server.port) { client in
                for _ in 0..<2 { _ = await client.send(grant, budget: .seconds(6)) }
                #expect(server.received.count == 2 && names.lookUps.withLock(\.self) == 0)
            }
        }
        // Each grant is sent twice.
        try await StubWebServer.with(answering: "", on: group) { server in
            try await attempts(server.port) { client in
                #expect(await client.send(grant, budget: .seconds(6)).answer == .unavailable(Unavailability(.broken)))
                #expect(server.received.count == 2)
                names.fails.withLock { $0 = true }
                let answer = await client.send(grant, budget: .seconds(6)).answer
                #expect(answer == .unavailable(Unavailability(.unreachable)))
                #expect(server.received.count == 2)
                names.fails.withLock { $0 = false }
                #expect(await client.send(grant, budget: .seconds(6)).answer == .unavailable(Unavailability(.broken)))
                #expect(server.received.count == 4)
            }
        }
    }

    @Test("A redirect is not followed.", arguments: [301, 302, 303, 307, 308])
    func redirect(_ status: Int) async throws {
        try await StubWebServer.with(answering: Self.response(200, Self.success), on: group) { target in
            let location = "Location: http://127.0.0.1:\(target.port)/auth/token\r\n"
            try await expect(Self.response(status, "", location), .notUnderstood, requests: 1)
            #expect(target.received.isEmpty)
        }
    }

    @Test("An outage, a long answer and another protocol are reported after one request.")
    func outage() async throws {
        try await expect(Self.response(500, "x"), .serverError, requests: 1)
        try await expect(Self.response(429, "x"), .throttled, requests: 1)
        try await expect(Self.response(200, "<html>"), .notUnderstood, requests: 1)
        let long = String(repeating: "x", count: TokenEndpointClient.largestAnswer + 1)
        try await expect(Self.response(200, long), .notUnderstood, requests: 1)
        // Would be refusals if they were read.
        let padded = #"{"error":"invalid_grant"}"# + String(repeating: " ", count: 1 << 20)
        try await expect(Self.response(400, padded), .notUnderstood, requests: 1)
        let wide = #"{"error":"invalid_grant"}"#.map { "\0\($0)" }.joined()
        let type = "Content-Type: application/json;charset=UTF-16\r\n"
        try await expect(Self.response(400, wide, type), .notUnderstood, requests: 1)
        try await expect("nonsense\r\n\r\n", .notUnderstood, requests: 1)
        try await expect("HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\n{}", .notUnderstood, requests: 1)
        #expect(try await send(to: 1)[0].answer == .unavailable(Unavailability(.unreachable)))
    }

    @Test("The budget covers head and body, and a late answer is not asked for again.")
    func budget() async throws {
        for response in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"] {
            try await expect(response, .timedOut, requests: 1, closes: false, budget: .milliseconds(150))
        }
    }
}
