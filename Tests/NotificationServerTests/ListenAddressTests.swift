import Listening
import Telemetry
import Testing

@testable import NotificationServer

@Suite("Addresses to listen on")
struct ListenAddressTests {
    @Test(
        "Host and port are parsed, and written in the same form.",
        arguments: [
            ("127.0.0.1:8080", "127.0.0.1", 8080), ("[::1]:0", "::1", 0), ("localhost:65535", "localhost", 65_535),
        ]
    )
    func valid(_ text: String, _ host: String, _ port: Int) throws {
        let address = try ListenAddress(parsing: text, setting: "SIWAD_LISTEN")
        #expect(address.host == host)
        #expect(address.port == port)
        #expect("\(address)" == text)
    }

    @Test(
        "Anything else is refused with the name of its setting.",
        arguments: [
            "", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:+1",
            "::1:8080", "[]:1", "http://a:80", "a b:1", "a:80/", "a\n:80",
        ]
    )
    func invalid(_ text: String) throws {
        let error = try #require(throws: ServerError.self) {
            try ListenAddress(parsing: text, setting: "SIWAD_LISTEN")
        }
        #expect(error.code == .invalidAddress)
        #expect(error.message.hasPrefix("SIWAD_LISTEN "))
    }

    @Test("A port in use is reported with its address and its setting.", .timeLimit(.minutes(5)))
    func portTaken() async throws {
        try await TestServer.with { server in
            let second = NotificationServer(
                address: ListenAddress(host: "127.0.0.1", port: server.port, setting: "SIWAD_LISTEN"),
                path: "/",
                metrics: server.metrics,
                eventLoops: TestServer.eventLoops,
                log: TestServer.log,
                receiver: server.ingest.receiver
            )
            let error = await #expect(throws: ServerError.self) { try await second.run() }
            #expect(error?.code == .addressInUse)
            #expect(error?.message.contains("127.0.0.1:\(server.port)") == true)
            #expect(error?.message.contains("SIWAD_LISTEN") == true)
        }
    }
}
