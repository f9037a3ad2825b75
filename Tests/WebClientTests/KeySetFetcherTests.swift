import Basics
import Glibc
import NIOPosix
import Testing

@testable import WebClient

@Suite("Fetching a key set", .timeLimit(.minutes(5)))
struct KeySetFetcherTests {
    private let group = MultiThreadedEventLoopGroup.singleton

    private func fetcher(_ url: String, deadline: Duration = .seconds(10)) throws -> KeySetFetcher {
        KeySetFetcher(url: try KeySetURL(parsing: url), version: "1.2.3", eventLoopGroup: group, deadline: deadline)
    }

    private func expectFailure(
        _ url: String,
        _ code: WebClientError.Code,
        deadline: Duration = .seconds(10),
        _ location: SourceLocation = #_sourceLocation
    ) async throws {
        let fetcher = try fetcher(url, deadline: deadline)
        let error = await #expect(throws: WebClientError.self, sourceLocation: location) {
            _ = try await fetcher.fetch()
        }
        #expect(error?.code == code, sourceLocation: location)
    }

    @Test("The body of a 200 is the key set; the request has a User-Agent and accepts no coding.")
    func success() async throws {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"keys\":[]}"
        try await StubWebServer.with(answering: answer, on: group) { server in
            let bytes = try await fetcher("http://127.0.0.1:\(server.port)/auth/keys").fetch()
            #expect(String(decoding: bytes, as: UTF8.self) == #"{"keys":[]}"#)
            let request = try #require(server.received.first)
            #expect(request.hasPrefix("GET /auth/keys HTTP/1.1\r\n"))
            #expect(request.lowercased().contains("\r\nuser-agent: siwad/1.2.3 ("))
            #expect(request.lowercased().contains("\r\naccept-encoding: identity\r\n"))
        }
    }

    @Test("Another status is refused.", arguments: [204, 304, 404, 500, 503])
    func status(_ status: Int) async throws {
        let answer = "HTTP/1.1 \(status) X\r\nContent-Length: 0\r\n\r\n"
        try await StubWebServer.with(answering: answer, on: group) { server in
            try await expectFailure("http://127.0.0.1:\(server.port)/", .unexpectedStatus(status))
        }
    }

    @Test("A redirect is not followed.", arguments: [301, 302, 303, 307, 308])
    func redirect(_ status: Int) async throws {
        let keys = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        try await StubWebServer.with(answering: keys, on: group) { target in
            let location = "http://127.0.0.1:\(target.port)/"
            let answer = "HTTP/1.1 \(status) X\r\nLocation: \(location)\r\nContent-Length: 0\r\n\r\n"
            try await StubWebServer.with(answering: answer, on: group) { server in
                try await expectFailure("http://127.0.0.1:\(server.port)/", .unexpectedStatus(status))
                #expect(target.received.isEmpty)
            }
        }
    }

    @Test("A response above the limit is refused, with or without Content-Length.")
    func tooLarge() async throws {
        let body = String(repeating: "x", count: KeySetFetcher.largestResponse + 1)
        let announced = "HTTP/1.1 200 OK\r\nContent-Length: \(body.count)\r\n\r\n\(body)"
        let unannounced = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\(body)"
        for answer in [announced, unannounced] {
            try await StubWebServer.with(answering: answer, on: group) { server in
                try await expectFailure("http://127.0.0.1:\(server.port)/", .tooLarge)
            }
        }
    }

    @Test("The deadline covers the head and the body.")
    func deadline() async throws {
        for answer in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"] {
            try await StubWebServer.with(answering: answer, closes: false, on: group) { server in
                try await expectFailure(
                    "http://127.0.0.1:\(server.port)/",
                    .timedOut,
                    deadline: .milliseconds(80)
                )
            }
        }
    }

    @Test("A broken or refused connection is reported immediately.")
    func unreachable() async throws {
        try await StubWebServer.with(answering: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", on: group) { server in
            try await expectFailure("http://127.0.0.1:\(server.port)/", .unreachable)
        }
        try await StubWebServer.with(answering: "nonsense\r\n\r\n", on: group) { server in
            try await expectFailure("http://127.0.0.1:\(server.port)/", .unreachable)
        }
        try await expectFailure("http://127.0.0.1:1/", .unreachable)
    }

    @Test("Nothing is requested before the name server knows the host.")
    func names() async throws {
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        try await StubWebServer.with(answering: answer, on: group) { server in
            let url = "http://localhost:\(server.port)/"
            for (addresses, message) in [
                ([], "cannot reach \(url): the host name localhost is not known; check the network and the URL"),
                (["127.0.0.1"], nil),
            ] as [([String], String?)] {
                let resolver = WebClient.Resolver { _ in addresses.compactMap { IPAddress($0) } }
                let fetcher = KeySetFetcher(
                    url: try KeySetURL(parsing: url),
                    version: "1.2.3",
                    eventLoopGroup: group,
                    resolver: resolver
                )
                do throws(WebClientError) {
                    _ = try await fetcher.fetch()
                    #expect(message == nil)
                } catch {
                    #expect(error.message == message && error.code == .unreachable)
                }
                #expect(server.received.count == addresses.count)
            }
        }
    }

    @Test("A file is read; other kinds of files and large files are refused.")
    func files() async throws {
        let path = "/proc/self/status"
        #expect(!(try await fetcher("file://\(path)").fetch()).isEmpty)
        try await expectFailure("file:///nowhere/keys.json", .unreadableFile)
        try await expectFailure("file:///tmp", .unreadableFile)
        try await expectFailure("file:///dev/zero", .unreadableFile)
        var template = Array("/tmp/siwad-keys-XXXXXX".utf8CString)
        let descriptor = mkstemp(&template)
        try #require(descriptor >= 0)
        let name = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
        ftruncate(descriptor, off_t(KeySetFetcher.largestResponse + 1))
        close(descriptor)
        try await expectFailure("file://\(name)", .tooLarge)
        unlink(name)
    }
}
