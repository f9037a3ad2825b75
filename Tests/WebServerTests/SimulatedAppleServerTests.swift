import Basics
import Listening
import TestSupport
import Testing
import WebServer

@Suite("The server of the simulated Apple", .timeLimit(.minutes(5)))
struct SimulatedAppleServerTests {
    /// Sends one request of a token to a server that gives this response; returns everything that it sends until it closes.
    private func received(_ response: SimulatedAppleServer.Response) async throws -> String {
        let (ports, running) = AsyncStream.makeStream(of: Int.self)
        return try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                defer { running.finish() }
                try await SimulatedAppleServer.run(
                    address: ListenAddress(host: "127.0.0.1", port: 0),
                    eventLoops: Surroundings.eventLoops,
                    log: Surroundings.log,
                    onRunning: { running.yield($0) },
                    answer: { _ in response }
                )
            }
            var iterator = ports.makeAsyncIterator()
            let port = try #require(await iterator.next())
            let client = try await RawClient.connect(to: port, on: Surroundings.eventLoops.group)
            let fields = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\nConnection: close\r\n"
            try await client.send("POST /auth/token HTTP/1.1\r\nHost: apple\r\n\(fields)\r\na=b")
            let text = await client.rest()
            group.cancelAll()
            // The task was cancelled, so its result does not matter.
            while let _ = await group.nextResult() {}
            return text
        }
    }

    @Test("A dropped connection ends before a byte is sent.")
    func dropped() async throws {
        let text = try await received(.init(status: 0, contentType: nil, body: "", isCut: true))
        #expect(text.isEmpty, "\(text)")
    }

    @Test("A cut connection ends within the body, also if the body is empty.", arguments: ["{\"a\":1}", ""])
    func cut(_ body: String) async throws {
        let text = try await received(.init(status: 200, contentType: nil, body: body, isCut: true))
        #expect(text.hasPrefix("HTTP/1.1 200 OK\r\n") && text.hasSuffix("\r\n\r\n\(body)"), "\(text)")
        #expect(text.lowercased().contains("content-length: \(body.utf8.count + 1)\r\n"), "\(text)")
    }

    /// The field Date of a response.
    private func date(_ text: String) -> WallTime? {
        let line = text.split(separator: "\r\n").first { $0.lowercased().hasPrefix("date: ") }
        return line.flatMap { WallTime(httpDate: String($0.dropFirst("date: ".count))) }
    }

    @Test("Date is that of the answer, or that of this machine.")
    func dates() async throws {
        let given = WallTime(seconds: 784_111_777)
        let dated = try await received(.init(status: 200, contentType: nil, body: "{}", date: given))
        #expect(date(dated) == given, "\(dated)")
        let before = WallTime(seconds: WallTime.now().wholeSeconds)
        let undated = try await received(.init(status: 200, contentType: nil, body: "{}"))
        let time = try #require(date(undated), "\(undated)")
        #expect(before <= time && time <= WallTime.now())
    }
}
