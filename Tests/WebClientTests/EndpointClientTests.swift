import Basics
import FoundationEssentials
import NIOCore
import NIOPosix
import Synchronization
import TestSupport
import Testing

@testable import WebClient

/// NIO has one too.
private typealias Resolver = WebClient.Resolver

@Suite("Requests to endpoints", .timeLimit(.minutes(2)))
struct EndpointClientTests {
    /// Answers look-ups one after the other, and counts them.
    private final class NameServer: Sendable {
        let lookUps = Mutex(0)
        let answers: [[String]]

        init(_ answers: [String]...) { self.answers = answers }

        var resolver: Resolver {
            Resolver { _ in
                let number = self.lookUps.withLock { count in
                    count += 1
                    return count - 1
                }
                return self.answers[min(number, self.answers.count - 1)].compactMap { IPAddress($0) }
            }
        }

        var count: Int { lookUps.withLock { $0 } }
    }

    private static let empty = "HTTP/1.1 204 No Content\r\n\r\n"
    private let group = MultiThreadedEventLoopGroup.singleton

    private func client(
        _ url: String,
        _ resolver: Resolver,
        allowing ranges: String = "127.0.0.1",
        authorities: String? = nil,
        proxy: String? = nil
    ) throws -> EndpointClient {
        let policy = AddressPolicy(allowed: try ranges.split(separator: ",").map { try #require(AddressRange($0)) })
        let settings = EndpointClient.Settings(
            policy: policy,
            authorities: authorities,
            proxy: proxy,
            version: "1.2.3"
        )
        return try EndpointClient(
            EndpointURL(parsing: url),
            concurrency: 4,
            settings: settings,
            resolver: resolver,
            eventLoopGroup: group
        )
    }

    /// The status, or the reason and words of a failure.
    private func post(_ client: EndpointClient, timeout: Duration = .seconds(10)) async -> String {
        do {
            let answer = try await client.post(Array("{}".utf8), headers: [("webhook-id", "msg_1")], timeout: timeout)
            return
                "\(answer.status) \(answer.connection.address?.description ?? "-") \(answer.connection.encryption ?? "-")"
        } catch {
            return "\(error.reason.rawValue): \(error.words)"
        }
    }

    @Test("The request has siwad's headers and the name of the host, and goes to the address of the only look-up.")
    func pinned() async throws {
        try await StubWebServer.with(answering: Self.empty, closes: false, on: group) { server in
            // The second answer would lead to another address.
            let names = NameServer(["127.0.0.1"], ["127.0.0.2"])
            let client = try client("http://shop.example.com:\(server.port)/hooks?a=b", names.resolver)
            #expect(await post(client) == "204 127.0.0.1 -")
            #expect(await post(client) == "204 127.0.0.1 -")
            await client.close()
            #expect(names.count == 1)
            let request = try #require(server.received.first)
            #expect(request.hasPrefix("POST /hooks?a=b HTTP/1.1\r\n"))
            #expect(request.lowercased().contains("host: shop.example.com:\(server.port)\r\n"))
            #expect(request.contains("User-Agent: siwad/1.2.3\r\n") && request.contains("webhook-id: msg_1\r\n"))
        }
    }

    @Test("A redirect is an answer, and is not followed.", arguments: [301, 302, 303, 307, 308])
    func redirect(status: Int) async throws {
        let answer = "HTTP/1.1 \(status) X\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n"
        try await StubWebServer.with(answering: answer, closes: false, on: group) { server in
            let client = try client("http://127.0.0.1:\(server.port)/", Resolver())
            #expect(await post(client) == "\(status) 127.0.0.1 -")
            await client.close()
            #expect(server.received.count == 1)
        }
    }

    @Test("If several addresses of a host are dead, each request tries the next one, and the one that answers is kept.")
    func deadAddresses() async throws {
        try await StubWebServer.with(answering: "HTTP/1.1 204 No Content\r\n\r\n", closes: false, on: group) { server in
            let names = NameServer(["127.0.0.2", "127.0.0.3", "127.0.0.1"])
            let url = "http://shop.example.com:\(server.port)/"
            let client = try client(url, names.resolver, allowing: "127.0.0.0/8")
            #expect(await post(client) == "unreachable: connection refused")
            #expect(await post(client) == "unreachable: connection refused")
            #expect(await post(client) == "204 127.0.0.1 -")
            #expect(await post(client) == "204 127.0.0.1 -")
            await client.close()
        }
    }

    @Test("After a failed connection the host is looked up again, and the addresses are judged again.")
    func rebound() async throws {
        let names = NameServer(["127.0.0.1"], ["127.0.0.2"])
        let client = try client("http://shop.example.com:1/", names.resolver)
        #expect(await post(client) == "unreachable: connection refused")
        #expect(await post(client).hasPrefix("blocked: 127.0.0.2 is not a public address"))
        #expect(names.count == 2)
        await client.close()
    }

    @Test("Of several addresses, an allowed one is used; if none is, the connection is refused.")
    func several() async throws {
        try await StubWebServer.with(answering: Self.empty, closes: false, on: group) { server in
            let mixed = try client(
                "http://shop.example.com:\(server.port)/",
                NameServer(["10.0.0.1", "::1", "127.0.0.1"]).resolver
            )
            #expect(await post(mixed) == "204 127.0.0.1 -")
            await mixed.close()
            let denied = try client("https://shop.example.com/", NameServer(["10.0.0.1", "::1"]).resolver)
            #expect(
                await post(denied)
                    == "blocked: 10.0.0.1 is not a public address; SIWAD_DELIVERY_ALLOW=10.0.0.1/32 allows it"
            )
            let unknown = try client("https://shop.example.com/", NameServer([]).resolver)
            #expect(await post(unknown) == "unreachable: the host name shop.example.com is not known")
        }
    }

    @Test(
        "Every notation of a loopback address is one.",
        arguments: ["127.0.0.1", "0x7f.1", "127.1", "2130706433", "localhost", "[::1]", "[::ffff:127.0.0.1]"]
    )
    func notations(host: String) async throws {
        let client = try client("http://\(host):1/", Resolver(), allowing: "10.0.0.0/8")
        #expect(await post(client).contains("is not a public address"))
        await client.close()
    }

    /// Runs a test with a server whose certificate is for `localhost`, and with a file of the authority of that certificate.
    private func withEncryptedServer(
        _ body: (StubWebServer, _ authorities: String) async throws -> Void
    ) async throws {
        let directory = try TemporaryDirectory()
        let file = directory.file("authorities.pem")
        try LocalhostCertificate.pem.write(toFile: file, atomically: true, encoding: .utf8)
        let context = try LocalhostCertificate.serverContext()
        try await StubWebServer.with(answering: Self.empty, closes: false, tls: context, on: group) { server in
            try await body(server, file)
        }
        withExtendedLifetime(directory) {}
    }

    @Test("A certificate must be of a known authority, and for the host's name.")
    func certificates() async throws {
        try await withEncryptedServer { server, file in
            func client(_ host: String, _ authorities: String?) throws -> EndpointClient {
                let url = "https://\(host):\(server.port)/"
                return try self.client(url, NameServer(["127.0.0.1"]).resolver, authorities: authorities)
            }
            let trusted = try client("localhost", file)
            #expect(await post(trusted) == "204 127.0.0.1 TLS 1.3")
            await trusted.close()
            for (host, authorities) in [("localhost", nil), ("shop.example.com", file)] {
                let refused = try client(host, authorities)
                #expect(await post(refused).hasPrefix("tls: "))
                await refused.close()
            }
            #expect(server.received.count == 1)
            #expect(throws: WebClientError.self) { try client("localhost", file + ".none") }
        }
    }

    /// Posts to `localhost` at an `openssl s_server` with these options, whose certificate's authority is known.
    private func postEncrypted(_ options: [String], in directory: TemporaryDirectory) async throws -> String {
        try await OpenSSL.withServer(options, in: directory) { port in
            let client = try client(
                "https://localhost:\(port)/",
                NameServer(["127.0.0.1"]).resolver,
                authorities: directory.file("certificate.pem")
            )
            let result = await post(client, timeout: .seconds(30))
            await client.close()
            return result
        }
    }

    @Test(
        "Nothing is sent over a version before TLS 1.2.",
        .enabled(if: OpenSSL.isInstalled),
        arguments: ["-tls1", "-tls1_1"]
    )
    func oldVersions(version: String) async throws {
        let directory = try TemporaryDirectory()
        try await OpenSSL.makeCertificate("ec", in: directory)
        let result = try await postEncrypted([version, "-cipher", "ALL:@SECLEVEL=0"], in: directory)
        #expect(result == "tls: localhost speaks neither TLS 1.2 nor 1.3")
    }

    @Test("An expired certificate of a known authority is refused.", .enabled(if: OpenSSL.isInstalled))
    func expired() async throws {
        let directory = try TemporaryDirectory()
        try await OpenSSL.makeCertificate("ec", in: directory)
        try await OpenSSL.expireCertificate(in: directory)
        let result = try await postEncrypted([], in: directory)
        #expect(result.hasPrefix("tls: this machine does not trust the certificate of localhost"), "\(result)")
    }

    @Test("A server that speaks no TLS, and one that breaks off or never begins the handshake, are failures in time.")
    func brokenHandshakes() async throws {
        func attempt(_ port: Int, _ timeout: Duration) async throws -> String {
            let client = try client("https://localhost:\(port)/", NameServer(["127.0.0.1"]).resolver)
            let result = await post(client, timeout: timeout)
            await client.close()
            return result
        }
        // An alert of TLS 1.2: handshake_failure.
        for greeting in ["220 mail.example.com ESMTP\r\n", "\u{15}\u{3}\u{3}\u{0}\u{2}\u{2}\u{28}"] {
            try await GreetingServer.with(greeting, closes: false, on: group) { port in
                let result = try await attempt(port, .seconds(10))
                #expect(result.hasPrefix("tls: the TLS handshake with localhost failed"), "\(result)")
            }
        }
        try await GreetingServer.with("", closes: true, on: group) { port in
            let result = try await attempt(port, .seconds(10))
            #expect(result == "tls: localhost closed the connection in the TLS handshake")
        }
        let silent = try SilentServer()
        #expect(try await attempt(Int(silent.port), .milliseconds(200)) == "timed-out: no answer in time")
    }

    /// Says the same to every client immediately, and reads nothing, or closes the connection when the client has spoken.
    private enum GreetingServer {
        static func with(
            _ greeting: String,
            closes: Bool,
            on group: any EventLoopGroup,
            _ body: (Int) async throws -> Void
        ) async throws {
            let channel = try await ServerBootstrap(group: group)
                .childChannelInitializer { channel in
                    channel.eventLoop.makeCompletedFuture {
                        try channel.pipeline.syncOperations.addHandler(Speaker(greeting: greeting, closes: closes))
                    }
                }
                .bind(host: "127.0.0.1", port: 0).get()
            do {
                try await body(channel.localAddress?.port ?? 0)
            } catch {
                try await channel.close()
                throw error
            }
            try await channel.close()
        }

        private final class Speaker: ChannelInboundHandler {
            typealias InboundIn = ByteBuffer
            typealias OutboundOut = ByteBuffer

            private let greeting: String
            private let closes: Bool

            init(greeting: String, closes: Bool) {
                self.greeting = greeting
                self.closes = closes
            }

            func channelActive(context: ChannelHandlerContext) {
                context.writeAndFlush(Self.wrapOutboundOut(ByteBuffer(string: greeting)), promise: nil)
            }

            func channelRead(context: ChannelHandlerContext, data: NIOAny) {
                if closes { context.close(promise: nil) }
            }
        }
    }

    @Test("Through a proxy, siwad looks no name up, checks literal addresses, and sends nothing unencrypted to a name.")
    func proxy() async throws {
        try await StubWebServer.with(answering: "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", on: group) {
            server in
            let names = NameServer(["127.0.0.1"])
            func client(_ url: String) throws -> EndpointClient {
                try self.client(url, names.resolver, allowing: "10.9.0.0/16", proxy: "http://127.0.0.1:\(server.port)")
            }
            let named = try client("https://shop.example.com/hooks")
            let closed = "unreachable: the proxy did not open a tunnel to shop.example.com; check SIWAD_DELIVERY_PROXY"
            #expect(await post(named) == closed)
            await named.close()
            #expect(server.received.map { $0.prefix { $0 != "\r\n" } } == ["CONNECT shop.example.com:443 HTTP/1.1"])
            #expect(await post(try client("https://10.1.2.3/")).hasPrefix("blocked: 10.1.2.3"))
            #expect(await post(try client("http://shop.example.com/")).hasPrefix("blocked: http: to a name"))
            #expect(server.received.count == 1)
            #expect(names.count == 0)
        }
        #expect(throws: WebClientError.self) {
            try self.client("https://a.example/", Resolver(), proxy: "https://proxy.example")
        }
        #expect(throws: WebClientError.self) {
            try self.client("https://a.example/", Resolver(), proxy: "http://proxy.example/x")
        }
    }

    @Test("A proxy that wants a login, and one that does not answer, are named as the cause.")
    func refusingProxies() async throws {
        func attempt(_ port: Int) async throws -> String {
            let names = NameServer(["127.0.0.1"])
            let client = try client("https://shop.example.com/", names.resolver, proxy: "http://127.0.0.1:\(port)")
            let result = await post(client, timeout: .seconds(30))
            await client.close()
            return result
        }
        let login = "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
        let wanted = "unreachable: the proxy wants a user and a password, which siwad does not send"
        try await StubWebServer.with(answering: login, on: group) { server in
            let refused = try await attempt(server.port)
            #expect(refused == "\(wanted); check SIWAD_DELIVERY_PROXY")
        }
        let silent = try SilentServer()
        let late = try await attempt(Int(silent.port))
        #expect(late == "unreachable: no connection through the proxy in time; check SIWAD_DELIVERY_PROXY")
        let absent = try await attempt(1)
        let cause = "no connection to the proxy: connection refused"
        #expect(absent == "unreachable: \(cause); check SIWAD_DELIVERY_PROXY")
    }

    @Test("Through a proxy, TLS reaches to the endpoint, whose certificate must be for its name; connections are kept.")
    func tunnel() async throws {
        try await withEncryptedServer { server, file in
            try await TunnelProxy.with(to: server.port, on: group) { proxy in
                let names = NameServer(["127.0.0.1"])
                func client(_ url: String) throws -> EndpointClient {
                    try self.client(url, names.resolver, authorities: file, proxy: proxy.url)
                }
                let trusted = try client("https://localhost/hooks")
                // The proxy chooses the address.
                for _ in 0..<2 { #expect(await post(trusted) == "204 - TLS 1.3") }
                await trusted.close()
                #expect(proxy.requests == ["CONNECT localhost:443 HTTP/1.1"])
                let refused = try client("https://shop.example.com:8443/hooks")
                #expect(await post(refused) == "tls: the certificate of shop.example.com is for another name")
                await refused.close()
                #expect(proxy.requests.dropFirst() == ["CONNECT shop.example.com:8443 HTTP/1.1"])
                let lines = server.received.map { $0.prefix { $0 != "\r\n" } }
                #expect(lines == ["POST /hooks HTTP/1.1", "POST /hooks HTTP/1.1"])
                #expect(names.count == 0)
            }
        }
    }

    @Test("A request that takes too long fails in time.")
    func timeout() async throws {
        try await StubWebServer.with(
            answering: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
            closes: false,
            on: group
        ) {
            let client = try client("http://127.0.0.1:\($0.port)/", Resolver())
            let start = ContinuousClock.now
            #expect(await post(client, timeout: .milliseconds(300)) == "timed-out: no answer in time")
            #expect(.now - start < .seconds(5))
            await client.close()
        }
    }
}
