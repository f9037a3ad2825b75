import Basics
import Glibc
import Listening
import NIOCore
import SignIn
import Synchronization
import TestSupport
import Testing

@testable import WebServer

@Suite("The limits of the application endpoint", .timeLimit(.minutes(5)))
struct ApplicationLimitTests {
    private static func limits(_ change: (inout ApplicationServer.Limits) -> Void) -> ApplicationServer.Limits {
        var limits = ApplicationServer.Limits()
        change(&limits)
        return limits
    }

    /// Lets calls of a service wait until the test lets them go.
    private final class Brake: Sendable {
        private let waiting = Mutex<(isOpen: Bool, continuations: [CheckedContinuation<Void, Never>])>((false, []))

        var count: Int { waiting.withLock { $0.continuations.count } }

        func wait() async {
            await withCheckedContinuation { continuation in
                let isOpen = waiting.withLock { state in
                    if !state.isOpen { state.continuations.append(continuation) }
                    return state.isOpen
                }
                if isOpen { continuation.resume() }
            }
        }

        func release() {
            let all = waiting.withLock { state in
                defer { state = (true, []) }
                return state.continuations
            }
            for continuation in all { continuation.resume() }
        }
    }

    private func until(_ condition: () -> Bool) async throws {
        while !condition() { try await Task.sleep(for: .milliseconds(2)) }
    }

    @Test("A body of 64 KiB is read, in pieces too, and a larger one is refused before it is read to its end.")
    func sizes() async throws {
        try await ApplicationFixture.with { fixture in
            let start = signInBody.dropLast() + #","padding":""#
            let body = start + String(repeating: "x", count: 65_536 - start.utf8.count - 2) + "\"}"
            #expect(body.utf8.count == 65_536)
            let chunks = stride(from: 0, to: body.utf8.count, by: 4096).map { offset in
                let piece = body.utf8.dropFirst(offset).prefix(4096)
                return "\(String(piece.count, radix: 16))\r\n\(String(Substring(piece)))\r\n"
            }
            let chunked =
                "POST /v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            #expect(try await fixture.one(request("POST /v1/sign-in", String(body))).status == 200)
            #expect(try await fixture.one(chunked + chunks.joined() + "0\r\n\r\n").status == 200)
            let calls = fixture.service.calls.count
            let larger = [request("POST /v1/sign-in", body + " "), chunked + chunks.joined() + "1\r\nx\r\n0\r\n\r\n"]
            for text in larger {
                let client = try await fixture.connect()
                client.push(text)
                let response = try await client.response()
                #expect(response.status == 413 && response.reason == "body-too-large")
                #expect(response.fields["connection"] == "close")
                #expect(await client.rest() == "")
            }
            // Without a byte of the body.
            let client = try await fixture.connect()
            try await client.send(
                "POST /v1/sign-in HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n"
            )
            #expect(try await client.response().status == 413)
            #expect(fixture.service.calls.count == calls)
        }
    }

    @Test("Heads that are too large or no HTTP end the connection.")
    func heads() async throws {
        try await ApplicationFixture.with { fixture in
            for text in [
                "x\r\n\r\n", request("GET /v1/sessions/a", fields: "A: \(String(repeating: "x", count: 20_000))\r\n"),
            ] {
                let client = try await fixture.connect()
                client.push(text)
                #expect((await client.rest()).hasPrefix("HTTP/1.1 400 "))
            }
            #expect(try await fixture.one(request("GET /v1/sessions/a")).status == 200)
            #expect(fixture.service.calls.count == 1)
        }
    }

    @Test("A body that does not arrive in time is 408, and the connection ends.", arguments: [0, 10])
    func slowBody(_ sent: Int) async throws {
        try await ApplicationFixture.with(limits: Self.limits { $0.deadline = .milliseconds(300) }) { fixture in
            let client = try await fixture.connect()
            try await client.send(
                String(request("POST /v1/sign-in", signInBody).dropLast(signInBody.utf8.count - sent))
            )
            let response = try await client.response()
            #expect(response.status == 408 && response.reason == "request-timeout")
            #expect(await client.rest() == "")
            // The same of a caller that is refused anyway.
            let refused = try await fixture.connect()
            try await refused.send(String(request("POST /none", signInBody).dropLast(4)))
            #expect(try await refused.response().status == 404)
            #expect(await refused.rest() == "")
            #expect(fixture.service.calls == [])
        }
    }

    @Test("A head that does not arrive in time ends the connection, and so does silence.")
    func silence() async throws {
        try await ApplicationFixture.with(limits: Self.limits { $0.idleDeadline = .milliseconds(200) }) { fixture in
            let slow = try await fixture.connect()
            try await slow.send("GET /v1/sess")
            #expect(await slow.rest() == "")
            let silent = try await fixture.connect()
            try await silent.send(request("GET /v1/sessions/a"))
            #expect(try await silent.response().status == 200)
            #expect(await silent.rest() == "")
        }
    }

    @Test("A client that sends requests and reads no response is disconnected.")
    func unread() async throws {
        try await ApplicationFixture.with(limits: Self.limits { $0.idleDeadline = .milliseconds(300) }) { fixture in
            guard case .network(let address) = fixture.address else { return }
            // The responses are more than the buffers of the system hold.
            let requests = String(repeating: request("GET /v1/openapi.json"), count: 4_000)
            let client = try await Surroundings.unreadConnection(to: address.port, sending: requests)
            // Waits until the server closes it.
            try await client.closeFuture.get()
        }
    }

    @Test("More requests than the limit allows together get 503, and are served again once one of them has ended.")
    func overload() async throws {
        let brake = Brake()
        let service = StubService { () throws(Problem) in await brake.wait() }
        try await ApplicationFixture.with(service, limits: Self.limits { $0.requests = 2 }) { fixture in
            let busy = try await [fixture.connect(), fixture.connect()]
            for client in busy { try await client.send(request("GET /v1/sessions/a")) }
            try await until { brake.count == 2 }
            let refused = try await fixture.ask(request("POST /v1/sign-in", signInBody), request("GET /v1/sessions/a"))
            for response in refused {
                #expect(response.status == 503 && response.reason == "overloaded")
                #expect(response.fields["retry-after"] == "1")
            }
            #expect(service.calls.count == 2)
            brake.release()
            for client in busy { #expect(try await client.response().status == 200) }
            #expect(try await fixture.one(request("POST /v1/sign-in", signInBody)).status == 200)
        }
    }

    @Test("A refusal before the request is served is reported, with the caller where it is known.")
    func reported() async throws {
        let limits = Self.limits { $0.requests = 0 }
        try await ApplicationFixture.with(limits: limits, callers: try ApplicationFixture.callers()) { fixture in
            let bearer = "Authorization: Bearer \(ApplicationFixture.token)\r\n"
            let refused = try await fixture.ask(
                request("POST /v1/sign-in", signInBody, fields: bearer),
                request("POST /v1/sign-in", signInBody),
                request("GET /v1/sessions/a", fields: bearer)
            )
            #expect(refused.map(\.status) == [503, 401, 503])
            #expect(fixture.service.refusals.map(\.reason) == [.overloaded, .unauthenticated])
            #expect(fixture.service.refusals.map { $0.caller?.name } == ["shop", nil])
        }
    }

    @Test("A request that takes too long gets 503, its work continues, and it counts until that has ended.")
    func deadline() async throws {
        let brake = Brake()
        let ended = Atomic(0)
        let service = StubService { () throws(Problem) in
            await brake.wait()
            ended.add(1, ordering: .relaxed)
        }
        let limits = Self.limits { limits in
            limits.deadline = .milliseconds(200)
            limits.requests = 1
        }
        try await ApplicationFixture.with(service, limits: limits) { fixture in
            let late = try await fixture.ask(request("POST /v1/sign-in", signInBody), request("GET /v1/sessions/a"))
            #expect(late.map(\.status) == [503, 503])
            #expect(late.map(\.reason) == ["overloaded", "overloaded"])
            #expect(service.calls.count == 1)
            #expect(service.refusals == [StubService.Refusal(reason: .overloaded, caller: nil)])
            brake.release()
            try await until { ended.load(ordering: .relaxed) == 1 }
            try await until { ended.load(ordering: .relaxed) == 1 }
            var status = 503
            while status == 503 { status = try await fixture.one(request("GET /v1/sessions/a")).status }
            #expect(status == 200)
        }
    }

    @Test("A shutdown waits for the work of a request that took too long.")
    func lateWork() async throws {
        let brake = Brake()
        let ended = Atomic(false)
        let service = StubService { () throws(Problem) in
            await brake.wait()
            // Longer than the end of a server that does not wait for it.
            try? await Task.sleep(for: .milliseconds(200))
            ended.store(true, ordering: .relaxed)
        }
        try await ApplicationFixture.with(service, limits: Self.limits { $0.deadline = .milliseconds(500) }) {
            fixture in
            #expect(try await fixture.one(request("GET /v1/sessions/a")).status == 503)
            await fixture.beginShutdown()
            while let client = try? await fixture.connect() { try await client.disconnect() }
            brake.release()
        }
        let hasEnded = ended.load(ordering: .relaxed)
        #expect(hasEnded)
    }

    @Test(
        "By default, 256 requests at once are served, and the next one gets 503.",
        .enabled(if: ApplicationLimitTests.openFiles >= 12_000, "too few files may be open")
    )
    func usualOverload() async throws {
        let brake = Brake()
        let service = StubService { () throws(Problem) in await brake.wait() }
        try await ApplicationFixture.with(service) { fixture in
            var busy: [RawClient] = []
            for number in 0..<256 {
                let client = try await fixture.connect()
                try await client.send(request("GET /v1/sessions/\(number)"))
                busy.append(client)
            }
            try await until { brake.count == 256 }
            let refused = try await fixture.one(request("POST /v1/sign-in", signInBody))
            #expect(refused.status == 503 && refused.reason == "overloaded")
            #expect(service.calls.count == 256)
            brake.release()
            for client in busy { #expect(try await client.response().status == 200) }
            #expect(try await fixture.one(request("POST /v1/sign-in", signInBody)).status == 200)
        }
    }

    @Test("By default, a request that takes longer than ten seconds gets 503.")
    func usualDeadline() async throws {
        let brake = Brake()
        let service = StubService { () throws(Problem) in await brake.wait() }
        try await ApplicationFixture.with(service) { fixture in
            let client = try await fixture.connect()
            let start = ContinuousClock.now
            try await client.send(request("GET /v1/sessions/a"))
            let late = try await client.response()
            let time = ContinuousClock.now - start
            #expect(late.status == 503 && late.reason == "overloaded")
            #expect(time > .milliseconds(9_900) && time < .seconds(15), "\(time)")
            brake.release()
        }
    }

    @Test("A client that disconnects does not end the work of its request.")
    func disconnect() async throws {
        let brake = Brake()
        let wasCancelled = Mutex<Bool?>(nil)
        let service = StubService { () throws(Problem) in
            await brake.wait()
            let isCancelled = Task.isCancelled
            wasCancelled.withLock { $0 = isCancelled }
        }
        try await ApplicationFixture.with(service) { fixture in
            let client = try await fixture.connect()
            try await client.send(request("POST /v1/sign-in", signInBody))
            try await until { brake.count == 1 }
            try await client.disconnect()
            brake.release()
            try await until { wasCancelled.withLock { $0 } != nil }
            #expect(wasCancelled.withLock { $0 } == false)
        }
    }

    @Test("A shutdown completes the request that is served, and then ends.")
    func shutdown() async throws {
        let brake = Brake()
        let service = StubService { () throws(Problem) in await brake.wait() }
        try await ApplicationFixture.with(service) { fixture in
            let client = try await fixture.connect()
            try await client.send(request("POST /v1/sign-in", signInBody))
            try await until { brake.count == 1 }
            let idle = try await fixture.connect()
            await fixture.beginShutdown()
            #expect(await idle.rest() == "")
            brake.release()
            #expect(try await client.response().status == 200)
            #expect(await client.rest() == "")
        }
    }

    @Test("At the limit of connections, silent ones make room, and the one that is served stays.")
    func connections() async throws {
        let brake = Brake()
        let service = StubService { () throws(Problem) in await brake.wait() }
        try await ApplicationFixture.with(service, limits: Self.limits { $0.connections = 4 }) { fixture in
            let busy = try await fixture.connect()
            try await busy.send(request("GET /v1/sessions/busy"))
            try await until { brake.count == 1 }
            let first = try await fixture.connect()
            var crowd: [RawClient] = []
            for _ in 0..<40 { crowd.append(try await fixture.connect()) }
            #expect(await first.rest() == "")
            brake.release()
            #expect(try await busy.response().status == 200)
            let newcomer = try await fixture.connect()
            try await newcomer.send(request("GET /v1/sessions/a"))
            #expect(try await newcomer.response().status == 200)
        }
    }

    @Test(
        "Five thousand silent connections keep no one out, and only as many as the limit stay open.",
        .enabled(if: ApplicationLimitTests.openFiles >= 12_000, "too few files may be open")
    )
    func crowd() async throws {
        let directory = try TemporaryDirectory()
        let socket = UnixSocket(path: directory.file("a.sock"))
        try await ApplicationFixture.with(at: .socket(socket)) { fixture in
            #expect(try await fixture.one(request("GET /v1/sessions/a")).status == 200)
            let sockets = try await connect(5_000, to: socket.path)
            defer { for socket in sockets { close(socket) } }
            let start = ContinuousClock.now
            #expect(try await fixture.one(request("GET /v1/sessions/a")).status == 200)
            #expect(ContinuousClock.now - start < .seconds(10))
            try await until { sockets.count { Self.isOpen($0) } <= 1_024 }
        }
    }

    private static var openFiles: Int {
        var limit = rlimit()
        return getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 ? Int(clamping: limit.rlim_max) : 0
    }

    /// False if the server has closed the connection.
    private static func isOpen(_ descriptor: Int32) -> Bool {
        var byte: UInt8 = 0
        return recv(descriptor, &byte, 1, Int32(MSG_DONTWAIT) | Int32(MSG_PEEK)) != 0
    }

    /// Connects on a thread of its own, because the queue of the server may be full.
    private func connect(_ count: Int, to path: String) async throws -> [Int32] {
        try await Task.detached {
            try (0..<count).map { _ in
                let descriptor = Glibc.socket(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
                try #require(descriptor >= 0, "\(String(cString: strerror(errno)))")
                var address = sockaddr_un()
                address.sun_family = sa_family_t(AF_UNIX)
                withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: path.utf8) }
                let size = socklen_t(MemoryLayout<sockaddr_un>.size)
                let result = withUnsafePointer(to: address) { pointer in
                    pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { Glibc.connect(descriptor, $0, size) }
                }
                try #require(result == 0, "\(String(cString: strerror(errno)))")
                return descriptor
            }
        }.value
    }

    @Test("A client that waits for 100 Continue gets it if its request is accepted, else the refusal.")
    func expectation() async throws {
        try await ApplicationFixture.with { fixture in
            let client = try await fixture.connect()
            let accepted = request("POST /v1/sign-in", signInBody, fields: "Expect: 100-continue\r\n")
            try await client.send(String(accepted.dropLast(signInBody.utf8.count)))
            #expect(try await client.response().status == 100)
            try await client.send(signInBody)
            #expect(try await client.response().status == 200)
            let refused = request("POST /none", signInBody, fields: "Expect: 100-continue\r\n")
            try await client.send(String(refused.dropLast(signInBody.utf8.count)))
            let response = try await client.response()
            #expect(response.status == 404 && response.fields["connection"] == "close")
            #expect(await client.rest() == "")
        }
    }

    @Test("Requests that are sent without waiting are answered in their order.")
    func pipelining() async throws {
        try await ApplicationFixture.with { fixture in
            let client = try await fixture.connect()
            let lines = [
                "GET /v1/sessions/1", "GET /none", "GET /v1/sessions/2", "PUT /v1/nonces", "GET /v1/openapi.json",
            ]
            try await client.send(lines.map { request($0) }.joined())
            var statuses: [Int] = []
            for _ in lines { statuses.append(try await client.response().status) }
            #expect(statuses == [200, 404, 200, 405, 200])
            #expect(fixture.service.calls.map(\.subject) == ["1", "2"])
        }
    }
}
