import NIOPosix
import Testing

@testable import WebClient

@Suite("Requests to a server of this machine", .timeLimit(.minutes(5)))
struct LocalProbeTests {
    private let group = MultiThreadedEventLoopGroup.singleton

    private func get(_ url: String, _ deadline: Duration = .seconds(10)) async throws -> LocalProbe.Response {
        try await LocalProbe.get(url, version: "1.2.3", eventLoopGroup: group, deadline: deadline)
    }

    @Test("The status, Allow and the body are returned.")
    func answer() async throws {
        let answer = "HTTP/1.1 405 X\r\nAllow: POST\r\nContent-Length: 4\r\n\r\nbody"
        try await StubWebServer.with(answering: answer, on: group) { server in
            let found = try await get("http://127.0.0.1:\(server.port)/a?b")
            #expect((found.status, found.allow, found.body) == (405, "POST", "body"))
            #expect(server.received.first?.hasPrefix("GET /a?b HTTP/1.1\r\n") == true)
        }
    }

    @Test("A missing, incomplete or refused response is reported in time.")
    func silence() async throws {
        let head = "HTTP/1.1 405 X\r\nContent-Length: 9\r\n\r\n"
        for answer in ["", head, head + "x"] {
            try await StubWebServer.with(answering: answer, closes: false, on: group) { server in
                let error = await #expect(throws: WebClientError.self) {
                    _ = try await get("http://127.0.0.1:\(server.port)/", .milliseconds(50))
                }
                #expect(error?.code == .timedOut)
            }
        }
        let error = await #expect(throws: WebClientError.self) { _ = try await get("http://127.0.0.1:1/") }
        #expect(error?.code == .unreachable)
        #expect(error?.message == "nothing answers at http://127.0.0.1:1/")
    }

    @Test("A response above the limit is reported, with or without Content-Length.")
    func tooLarge() async throws {
        let body = String(repeating: "x", count: LocalProbe.largestResponse + 1)
        let announced = "HTTP/1.1 200 OK\r\nContent-Length: \(body.utf8.count)\r\n\r\n\(body)"
        let unannounced = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\(body)"
        for answer in [announced, unannounced] {
            try await StubWebServer.with(answering: answer, on: group) { server in
                let url = "http://127.0.0.1:\(server.port)/"
                let error = await #expect(throws: WebClientError.self) { _ = try await get(url) }
                #expect(error?.code == .tooLarge)
                #expect(error?.message == "\(url) answers more than 65536 bytes: it is not siwad")
            }
        }
    }

    @Test("A key set over HTTP comes with the Date of its server.")
    func date() async throws {
        let answer = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 2\r\n\r\n{}"
        try await StubWebServer.with(answering: answer, on: group) { server in
            let url = try KeySetURL(parsing: "http://127.0.0.1:\(server.port)/")
            let fetched = try await KeySetFetcher(url: url, version: "1.2.3", eventLoopGroup: group).fetchDated()
            #expect((fetched.bytes, fetched.date) == (Array("{}".utf8), "Sun, 06 Nov 1994 08:49:37 GMT"))
        }
    }
}
