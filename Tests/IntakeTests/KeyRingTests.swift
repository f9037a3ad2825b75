import AppleNotifications
import AppleSimulator
import JOSE
import Telemetry
import Testing

@testable import Intake

#if canImport(Glibc)
    import Glibc
#endif

@Suite("The ring of keys", .timeLimit(.minutes(5)))
struct KeyRingTests {
    @Test("Thousands of fetches leave nothing behind in memory.")
    func memory() async throws {
        let keySet = Array(try SimulatedApple.generate().keySetJSON.utf8)
        try await Self.withRing(fetch: { keySet }) { ring, _ in
            // What tests beside this one take is in the same number, so one quiet round of several is enough. The first
            // one fills the allocator. Fetches that left a task behind would leave a megabyte in each.
            var least = Int.max
            for round in 0..<6 {
                let before = try Self.residentBytes()
                for number in 0..<1_500 { #expect(await ring.verdict(on: "kid\(round).\(number)") == .unknownKey) }
                guard round > 0 else { continue }
                least = min(least, try Self.residentBytes() - before)
                if least < 400_000 { break }
            }
            #expect(least < 400_000)
        }
    }

    /// A ring that nobody limits in how often it fetches, and what it logs.
    private static func withRing(
        fetch: @escaping @Sendable () async throws -> [UInt8],
        _ body: (KeyRing, CollectedLog) async throws -> Void
    ) async throws {
        let log = CollectedLog()
        let ring = KeyRing(
            refresh: .seconds(3_600),
            floor: .zero,
            source: KeyRing.Source(fetch: fetch, persisted: { [] }, persist: { _ in }),
            metrics: SiwadMetrics(version: "test", appIDs: []),
            log: Log(label: "test", level: .info, format: .text) { log.append($0) }
        )
        async let ran: Void = ring.run()
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(ring, log))
        } catch {
            result = .failure(error)
        }
        ring.stop()
        await ran
        try result.get()
    }

    /// What the process has in memory (proc(5), `statm`).
    private static func residentBytes() throws -> Int {
        let file = try #require(fopen("/proc/self/statm", "r"))
        defer { fclose(file) }
        var line = [CChar](repeating: 0, count: 256)
        _ = fgets(&line, 256, file)
        let text = String(decoding: line.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self)
        let fields = text.split(separator: " ")
        return try #require(fields.count > 1 ? Int(fields[1]) : nil) * Int(sysconf(Int32(_SC_PAGESIZE)))
    }
}

extension KeyRing {
    /// What somebody is told who wants this key.
    fileprivate func verdict(on kid: String) async -> KeySetCache.Verdict {
        await withCheckedContinuation { continuation in
            want(kid, holding: 0) { continuation.resume(returning: $0) }
        }
    }
}
