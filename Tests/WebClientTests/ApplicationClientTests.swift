import Glibc
import NIOPosix
import TestSupport
import Testing

@testable import WebClient

@Suite("Requests to the application endpoint", .timeLimit(.minutes(5)))
struct ApplicationClientTests {
    @Test("A socket is reached whatever characters its path has.", arguments: ["s", "a@b:c#d?e f", "%2F[é]"])
    func path(name: String) async throws {
        let directory = try TemporaryDirectory()
        try #require(mkdir(directory.file(name), 0o700) == 0)
        let socket = directory.file("\(name)/application.sock")
        let answer = "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n{}"
        let group = MultiThreadedEventLoopGroup.singleton
        try await StubWebServer.with(answering: answer, socket: socket, on: group) { server in
            let client = try ApplicationClient(address: "unix:\(socket)", bearer: nil)
            let response = try await client.signIn(Array("{}".utf8), idempotencyKey: nil, on: group)
            #expect(response == ApplicationClient.Response(status: 200, body: Array("{}".utf8)))
            #expect(server.received.first?.hasPrefix("POST /v1/sign-in HTTP/1.1\r\n") == true)
        }
        withExtendedLifetime(directory) {}
    }
}
