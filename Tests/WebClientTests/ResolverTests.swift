import Basics
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import WebClient

@Suite("Look-ups of host names", .timeLimit(.minutes(1)))
struct ResolverTests {
    /// A name server that answers when the test lets it.
    private final class NameServer: Sendable {
        let asked = Mutex<[String]>([])
        private let isOpen: DispatchSemaphore

        init(isOpen: Bool) {
            self.isOpen = DispatchSemaphore(value: isOpen ? 1 : 0)
        }

        func open() { isOpen.signal() }

        func lookUp(_ host: String) -> [IPAddress] {
            asked.withLock { $0.append(host) }
            if host.hasPrefix("dead") {
                isOpen.wait()
                isOpen.signal()
            }
            return [IPAddress("192.0.2.1")].compactMap(\.self)
        }
    }

    @Test("All callers that ask for a host at the same time share one look-up.")
    func shared() async throws {
        let server = NameServer(isOpen: false)
        let resolver = Resolver(lookUp: server.lookUp)
        try await withThrowingTaskGroup { group in
            for _ in 0..<100 {
                group.addTask { try await resolver.addresses(of: "dead.example") }
            }
            server.open()
            for try await addresses in group { #expect(addresses == [IPAddress("192.0.2.1")]) }
        }
        #expect(server.asked.withLock(\.self) == ["dead.example"])
    }

    @Test("A name server that does not answer for one host delays no other.")
    func independent() async throws {
        let server = NameServer(isOpen: false)
        defer { server.open() }
        let resolver = Resolver(lookUp: server.lookUp)
        try await withThrowingTaskGroup(of: Void.self) { group in
            for _ in 0..<100 {
                group.addTask {
                    _ = await #expect(throws: WebClientError.self) {
                        try await resolver.addresses(of: "dead.example", within: .milliseconds(200))
                    }
                }
            }
            for number in 0..<40 {
                group.addTask { _ = try await resolver.addresses(of: "host\(number).example") }
            }
            try await group.waitForAll()
        }
        #expect(server.asked.withLock(\.count) == 41)
    }

    /// Begins look-ups that block, runs `body` once all have begun, and ends them.
    private func withBlockedLookUps(
        _ count: Int,
        of server: NameServer,
        by resolver: Resolver,
        _ body: () async throws -> Void
    ) async throws {
        try await withThrowingTaskGroup(of: [IPAddress].self) { group in
            for number in 0..<count {
                group.addTask { try await resolver.addresses(of: "dead\(number).example") }
            }
            while server.asked.withLock(\.count) < count { await Task.yield() }
            let result: Result<Void, any Error>
            do {
                result = .success(try await body())
            } catch {
                result = .failure(error)
            }
            server.open()
            for try await addresses in group { #expect(addresses == [IPAddress("192.0.2.1")]) }
            try result.get()
        }
    }

    @Test("Look-ups that block leave the threads of Swift's tasks free.")
    func threads() async throws {
        let server = NameServer(isOpen: false)
        let count = min(sysconf(Int32(_SC_NPROCESSORS_ONLN)) + 4, Resolver.mostLookUps)
        let start = ContinuousClock.now
        try await withBlockedLookUps(count, of: server, by: Resolver(lookUp: server.lookUp)) {
            await Task.detached {}.value
            #expect(.now - start < .seconds(3))
        }
    }

    @Test("More hosts than are looked up at the same time wait, and are looked up later.")
    func many() async throws {
        let server = NameServer(isOpen: false)
        let resolver = Resolver(lookUp: server.lookUp)
        try await withBlockedLookUps(Resolver.mostLookUps, of: server, by: resolver) {
            let error = await #expect(throws: WebClientError.self) {
                try await resolver.addresses(of: "shop.example", within: .milliseconds(20))
            }
            #expect(error?.message == "the name server did not answer in time for shop.example")
            #expect(server.asked.withLock(\.count) == Resolver.mostLookUps)
        }
        #expect(try await resolver.addresses(of: "shop.example") == [IPAddress("192.0.2.1")])
        #expect(try await resolver.addresses(of: "other.example") == [IPAddress("192.0.2.1")])
        #expect(server.asked.withLock { $0.filter { $0 == "shop.example" }.count } == 1)
    }

    @Test("A name server that fails is distinguished from an unknown name, and is asked again.")
    func failure() async throws {
        func message(_ status: Int32) -> String { Resolver.failure(status, of: "shop.example").message }
        let unknown = "the host name shop.example is not known"
        let failed = "the name server could not answer for shop.example"
        for status in [EAI_NONAME, Resolver.noData] { #expect(message(status) == unknown) }
        for status in [EAI_AGAIN, EAI_FAIL, EAI_SYSTEM] { #expect(message(status) == failed) }
        let server = FailingServer()
        let resolver = Resolver(lookUp: server.lookUp)
        for expected in [failed, unknown] {
            let error = await #expect(throws: WebClientError.self) {
                try await resolver.addresses(of: "shop.example")
            }
            #expect(error?.message == expected)
        }
        #expect(try await resolver.addresses(of: "shop.example") == [IPAddress("192.0.2.1")])
    }

    /// Fails, then knows no address, then knows one.
    private final class FailingServer: Sendable {
        private let lookUps = Mutex(0)

        func lookUp(_ host: String) throws(WebClientError) -> [IPAddress] {
            let number = lookUps.withLock { count in
                count += 1
                return count
            }
            switch number {
            case 1: throw Resolver.failure(EAI_AGAIN, of: host)
            case 2: return []
            default: return [IPAddress("192.0.2.1")].compactMap(\.self)
            }
        }
    }
}
