import Basics
import Dispatch
import Synchronization
import Testing
import WebClient

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
            if host == "dead.example" {
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
}
