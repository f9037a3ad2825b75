import Basics
import NIOPosix
import Testing

@testable import WebClient

@Suite("Hostile answers", .timeLimit(.minutes(5)))
struct HostileAnswerTests {
    private let group = MultiThreadedEventLoopGroup.singleton

    /// What a receiver may send: pieces of HTTP in a right or wrong order.
    private static func answer() -> String {
        func any(_ choices: String...) -> String { choices.randomElement() ?? "" }
        func head() -> String {
            let code = any("200", "204", "304", "100", "101", "102", "103", "199", "410", "500", "999", "099", "000")
            var lines = [any("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0") + " \(code) " + any("", "OK")]
            for _ in 0..<Int.random(in: 0...3) {
                lines.append(
                    any(
                        "Content-Length: 0",
                        "Content-Length: 2",
                        "Content-Length: 9",
                        "Content-Length: -1",
                        "Transfer-Encoding: chunked",
                        "Transfer-Encoding: gzip, chunked",
                        "Connection: close",
                        "Connection: keep-alive",
                        "Connection: upgrade",
                        "Upgrade: h2c",
                        "Trailer: X",
                        "X",
                        ": x",
                        "Retry-After: 99999999999999999999",
                        "webhook-delivery: abort-message"
                    )
                )
            }
            return lines.joined(separator: "\r\n") + "\r\n\r\n"
        }
        func body() -> String {
            any("", "{}", "2\r\n{}\r\n0\r\n\r\n", "0\r\n\r\n", "0\r\nX: y\r\n\r\n", "fffffffffffffffff\r\n", "\0", "x")
        }
        let whole = (0..<Int.random(in: 1...4)).map { _ in any(head(), head(), head() + body(), body()) }.joined()
        return Bool.random() ? whole : String(whole.prefix(Int.random(in: 0...whole.count)))
    }

    /// The status of the answer, or the reason why there is none; nil for a status that no answer may have.
    private static func outcome(of client: EndpointClient) async -> String? {
        do {
            let status = try await client.post([1], headers: [], timeout: .milliseconds(100)).status
            return 200...999 ~= status || status == 101 ? "\(status)" : nil
        } catch {
            return error.words
        }
    }

    @Test("Every answer ends with a status or a reason, and none stops the process.")
    func answers() async throws {
        try await withThrowingDiscardingTaskGroup { tasks in
            for _ in 0..<8 {
                tasks.addTask {
                    for _ in 0..<50 {
                        let answer = Self.answer()
                        try await StubWebServer.with(answering: answer, closes: .random(), on: group) { server in
                            let client = try EndpointClient(
                                EndpointURL(parsing: "http://127.0.0.1:\(server.port)/"),
                                concurrency: 2,
                                settings: .init(
                                    policy: AddressPolicy(allowed: [try #require(AddressRange("127.0.0.1"))]),
                                    authorities: nil,
                                    proxy: nil,
                                    version: "1"
                                ),
                                resolver: Resolver(),
                                eventLoopGroup: group
                            )
                            // The second request may use the connection of the first one.
                            for _ in 0..<2 {
                                let outcome = await Self.outcome(of: client)
                                #expect(outcome != nil, "\(answer.debugDescription)")
                            }
                            await client.close()
                        }
                    }
                }
            }
        }
    }
}
