import AsyncHTTPClient
import Listening
import NIOCore
import NIOHTTP1
import NIOPosix
import Synchronization
import Telemetry
import Testing
import WebServer

@Suite("The operations endpoint and the published key set", .timeLimit(.minutes(5)))
struct OperationsServerTests {
    private struct Client {
        struct Response {
            let status: Int
            let fields: HTTPHeaders
            let body: String

            var type: String? { fields.first(name: "content-type") }
        }

        let client: HTTPClient
        let port: Int

        func callAsFunction(_ path: String, method: HTTPMethod = .GET) async throws -> Response {
            var request = HTTPClientRequest(url: "http://127.0.0.1:\(port)\(path)")
            request.method = method
            let response = try await client.execute(request, timeout: .seconds(20))
            let body = String(buffer: try await response.body.collect(upTo: 1 << 20))
            return Response(status: Int(response.status.code), fields: response.headers, body: body)
        }
    }

    /// Runs a server on its own port while `questions` sends requests to it.
    private func ask(
        _ run: @escaping @Sendable (_ onRunning: @escaping @Sendable (Int) async -> Void) async throws -> Void,
        _ questions: (_ get: Client) async throws -> Void
    ) async throws {
        let (ports, running) = AsyncStream.makeStream(of: Int.self)
        let client = HTTPClient(eventLoopGroup: Surroundings.eventLoops.group)
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { try await run { running.yield($0) } }
            var iterator = ports.makeAsyncIterator()
            let port = try #require(await iterator.next())
            try await questions(Client(client: client, port: port))
            group.cancelAll()
            // The task was cancelled, so its result does not matter.
            while let _ = await group.nextResult() {}
        }
        try await client.shutdown()
    }

    @Test("An address of another machine is reported as unavailable.")
    func unavailable() async throws {
        let error = await #expect(throws: ServerError.self) {
            try await OperationsServer.run(
                address: ListenAddress(host: "192.0.2.1", port: 0, setting: "SIWAD_OPERATIONS_LISTEN"),
                eventLoops: Surroundings.eventLoops,
                log: Surroundings.log,
                metrics: .init()
            ) { [] }
        }
        #expect(error?.code == .addressUnavailable)
    }

    @Test("At the limit of connections, silent ones are closed, so that a probe is answered.")
    func silentClients() async throws {
        try await ask { onRunning in
            try await OperationsServer.run(
                address: ListenAddress(host: "127.0.0.1", port: 0),
                eventLoops: Surroundings.eventLoops,
                log: Surroundings.log,
                connectionLimit: 4,
                onRunning: onRunning,
                metrics: .init()
            ) { [] }
        } _: { get in
            let group = Surroundings.eventLoops.group
            var silent: [any Channel] = []
            for _ in 0..<16 {
                silent.append(try await ClientBootstrap(group: group).connect(host: "127.0.0.1", port: get.port).get())
            }
            #expect(try await get("/livez").status == 200)
            try await silent[0].closeFuture.get()
            for channel in silent { channel.close(promise: nil) }
        }
    }

    @Test("At the limit of connections, a new one is closed if a request is served on each of the others.")
    func busyClients() async throws {
        let (reached, asked) = AsyncStream.makeStream(of: Void.self)
        let (end, ending) = AsyncStream.makeStream(of: Void.self)
        try await ask { onRunning in
            try await OperationsServer.run(
                address: ListenAddress(host: "127.0.0.1", port: 0),
                eventLoops: Surroundings.eventLoops,
                log: Surroundings.log,
                connectionLimit: 1,
                onRunning: onRunning,
                metrics: .init()
            ) {
                asked.yield()
                for await _ in end {}
                return []
            }
        } _: { get in
            async let busy = get("/readyz").status
            for await _ in reached { break }
            let group = Surroundings.eventLoops.group
            let newcomer = try await ClientBootstrap(group: group).connect(host: "127.0.0.1", port: get.port).get()
            try await newcomer.closeFuture.get()
            ending.finish()
            #expect(try await busy == 200)
            #expect(try await get("/livez").status == 200)
        }
    }

    @Test("It reports liveness, each readiness check, and metrics.")
    func operations() async throws {
        let metrics = SiwadMetrics(version: "1.2.3", appIDs: [])
        let state = Readiness()
        try await ask { onRunning in
            try await OperationsServer.run(
                address: ListenAddress(host: "127.0.0.1", port: 0),
                eventLoops: Surroundings.eventLoops,
                log: Surroundings.log,
                onRunning: onRunning,
                metrics: metrics.registry
            ) {
                [
                    ReadinessCheck(name: "database", isReady: state.isReady.load(ordering: .relaxed)),
                    ReadinessCheck(name: "keys", isReady: true, detail: "2 keys"),
                ]
            }
        } _: { get in
            #expect(try await get("/livez").status == 200)
            let ready = try await get("/readyz")
            #expect(ready.status == 200)
            #expect(ready.body == "ok\n")
            let verbose = try await get("/readyz?verbose")
            #expect(verbose.body == "[+]database ok\n[+]keys ok: 2 keys\nreadyz check passed\n")
            state.isReady.store(false, ordering: .relaxed)
            let failed = try await get("/readyz")
            #expect(failed.status == 503)
            #expect(failed.body == "[-]database failed\n[+]keys ok: 2 keys\nreadyz check failed\n")
            #expect(try await get("/livez").status == 200)
            let scrape = try await get("/metrics")
            #expect(scrape.type == "text/plain; version=0.0.4; charset=utf-8")
            #expect(scrape.body.contains("siwad_build_info{version=\"1.2.3\"} 1\n"))
            #expect(try await get("/apple/notifications").status == 404)
        }
    }

    @Test("HEAD is answered like GET without the body, and other methods with 405 and Allow.")
    func methods() async throws {
        let metrics = SiwadMetrics(version: "1.2.3", appIDs: [])
        try await ask { onRunning in
            try await OperationsServer.run(
                address: ListenAddress(host: "127.0.0.1", port: 0),
                eventLoops: Surroundings.eventLoops,
                log: Surroundings.log,
                onRunning: onRunning,
                metrics: metrics.registry
            ) {
                [ReadinessCheck(name: "database", isReady: false)]
            }
        } _: { ask in
            for (path, status) in [("/livez", 200), ("/readyz", 503), ("/readyz?verbose", 503), ("/metrics", 200)] {
                let read = try await ask(path)
                let head = try await ask(path, method: .HEAD)
                #expect(head.status == status && read.status == status)
                #expect(head.body == "" && read.body != "")
                #expect(head.type == read.type)
                for method in [HTTPMethod.POST, .PUT, .DELETE, .OPTIONS, .RAW(value: "PURGE")] {
                    let refused = try await ask(path, method: method)
                    #expect(refused.status == 405, "\(method) \(path)")
                    #expect(refused.fields["allow"] == ["GET, HEAD"])
                }
            }
            for method in [HTTPMethod.GET, .HEAD, .POST] {
                #expect(try await ask("/other", method: method).status == 404)
            }
        }
    }

    @Test("A client that sends requests and reads no response is disconnected.")
    func unread() async throws {
        let metrics = SiwadMetrics(version: "1.2.3", appIDs: [])
        try await ask { onRunning in
            try await OperationsServer.run(
                address: ListenAddress(host: "127.0.0.1", port: 0),
                eventLoops: Surroundings.eventLoops,
                log: Surroundings.log,
                idleDeadline: .milliseconds(300),
                onRunning: onRunning,
                metrics: metrics.registry
            ) { [] }
        } _: { get in
            // The responses are more than the buffers of the system hold.
            let requests = String(repeating: "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", count: 4_000)
            let client = try await Surroundings.unreadConnection(to: get.port, sending: requests)
            // Waits until the server closes it.
            try await client.closeFuture.get()
        }
    }

    @Test("A key set is published where Apple publishes its own.")
    func keySet() async throws {
        try await ask { onRunning in
            try await KeySetServer.run(
                address: ListenAddress(host: "127.0.0.1", port: 0),
                keySet: Array(#"{"keys":[]}"#.utf8),
                eventLoops: Surroundings.eventLoops,
                log: Surroundings.log,
                onRunning: onRunning
            )
        } _: { get in
            let response = try await get(KeySetServer.path)
            #expect(response.status == 200)
            #expect(response.body == #"{"keys":[]}"#)
            #expect(response.type == "application/json;charset=UTF-8")
            #expect(try await get("/").status == 404)
        }
    }

    private final class Readiness: Sendable {
        let isReady = Atomic<Bool>(true)
    }
}
