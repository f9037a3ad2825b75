import WebClient
import NIOPosix
import Synchronization
import Testing

@Suite("Sending notifications", .timeLimit(.minutes(5)))
struct NotificationSenderTests {
    private let group = MultiThreadedEventLoopGroup.singleton

    @Test("Each notification is a POST with its own body, and the summary counts the responses.")
    func counts() async throws {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        try await StubWebServer.with(answering: answer, closes: false, on: group) { server in
            let sender = try NotificationSender(
                url: "http://127.0.0.1:\(server.port)/apple",
                version: "1.2.3",
                eventLoopGroup: group,
                concurrency: 4
            )
            let outcomes = Mutex<[Int]>([])
            let summary = try await sender.send(count: 20) { number in
                Array("body \(number)".utf8)
            } onOutcome: { number, _ in
                outcomes.withLock { $0.append(number) }
            }
            #expect(summary.statuses == [200: 20])
            #expect(summary.failures == 0)
            #expect(summary.latencies.count == 20)
            #expect(summary.latency(ofShare: 1) == summary.latencies.last)
            #expect(outcomes.withLock { $0.sorted() } == Array(0..<20))
            #expect(server.received.joined().contains("POST /apple HTTP/1.1\r\n"))
            #expect(server.received.joined().contains("body 19"))
        }
    }

    @Test("A request without a response is counted with its cause, and a refusal has its body.")
    func failures() async throws {
        let refused = try NotificationSender(url: "http://127.0.0.1:1/", version: "1", eventLoopGroup: group)
        let summary = try await refused.send(count: 2) { _ in [] }
        #expect(summary.failures == 2)
        #expect(summary.firstFailure != nil)
        #expect(summary.latency(ofShare: 0.5) == nil)

        let answer = "HTTP/1.1 401 X\r\nContent-Length: 4\r\n\r\nbody"
        try await StubWebServer.with(answering: answer, on: group) { server in
            let sender = try NotificationSender(
                url: "http://127.0.0.1:\(server.port)/",
                version: "1",
                eventLoopGroup: group
            )
            let bodies = Mutex<[String]>([])
            _ = try await sender.send(count: 1) { _ in
                []
            } onOutcome: { _, outcome in
                if case .answered(401, let body, _) = outcome { bodies.withLock { $0.append(body) } }
            }
            #expect(bodies.withLock { $0 } == ["body"])
        }
    }

    @Test("An error of the body function ends the sending.")
    func noBody() async throws {
        struct Refusal: Error {}
        let sender = try NotificationSender(url: "http://127.0.0.1:1/", version: "1", eventLoopGroup: group)
        await #expect(throws: Refusal.self) { try await sender.send(count: 3) { _ in throw Refusal() } }
    }

    @Test(
        "A URL that is not http: or https: is refused.",
        arguments: ["", "127.0.0.1:8080", "ftp://a/", "http://a b/"]
    )
    func url(_ url: String) {
        #expect(throws: WebClientError.self) {
            try NotificationSender(url: url, version: "1", eventLoopGroup: group)
        }
    }
}
