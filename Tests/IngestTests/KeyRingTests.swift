import AppleTokens
import AppleSimulator
import Basics
import JOSE
import Synchronization
import Telemetry
import Testing

@testable import Ingest

#if canImport(Glibc)
    import Glibc
#endif

@Suite("The ring of keys", .timeLimit(.minutes(5)))
struct KeyRingTests {
    @Test("Thousands of fetches do not leak memory.")
    func memory() async throws {
        let keySet = Array(try SimulatedApple.generate().keySetJSON.utf8)
        let source = KeyRing.Source(fetch: { keySet }, persisted: { .none }, persist: { _, _ in })
        try await Self.withRing(source) { ring, _ in
            // Memory of other tests is in the same number, so one quiet round of several is enough. The first
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

    @Test("Stored keys that can't be read at first are in force as soon as they can be read, while Apple is away.")
    func persistedLater() async throws {
        let apple = try SimulatedApple.generate()
        let attempts = Atomic(0)
        let source = KeyRing.Source(
            fetch: { throw KeyEndpoint.Down() },
            persisted: {
                guard attempts.add(1, ordering: .relaxed).newValue > 3 else { throw Away() }
                return KeySet(apple.keys, fetchedAt: nil, confirmedAt: .now())
            },
            persist: { _, _ in }
        )
        try await Self.withRing(source) { ring, log in
            await Self.until { !ring.keys.isEmpty }
            #expect(ring.keys.keys.map(\.keyID) == [apple.keyID])
            #expect(ring.keys.fetchedAt == nil)
            #expect(log.count("kept signing keys could not be read") == 1)
        }
    }

    @Test("A fetched set that can't be stored at first is stored when the database is back.")
    func keptLater() async throws {
        let apple = try SimulatedApple.generate()
        let attempts = Mutex<[[String]]>([])
        let source = KeyRing.Source(
            fetch: { Array(apple.keySetJSON.utf8) },
            persisted: { .none },
            persist: { keys, _ in
                let count = attempts.withLock { attempts in
                    attempts.append(keys.map(\.keyID))
                    return attempts.count
                }
                guard count > 3 else { throw Away() }
            }
        )
        try await Self.withRing(source) { _, log in
            await Self.until { log.count("the fetched keys are kept after all") == 1 }
            #expect(attempts.withLock { $0 } == Array(repeating: [apple.keyID], count: 4))
            #expect(log.count("the fetched keys could not be kept") == 1)
        }
    }

    @Test("A newer set replaces one that could not be stored.")
    func newerInstead() async throws {
        let (older, newer) = (try SimulatedApple.generate(), try SimulatedApple.generate())
        let endpoint = KeyEndpoint(older.keySetJSON)
        let attempts = Mutex<[String]>([])
        let source = KeyRing.Source(
            fetch: { try await endpoint.fetch() },
            persisted: { .none },
            persist: { keys, _ in
                let count = attempts.withLock { attempts in
                    attempts += keys.map(\.keyID)
                    return attempts.count { $0 == newer.keyID }
                }
                guard count > 1 else { throw Away() }
            }
        )
        try await Self.withRing(source) { ring, log in
            await Self.until { attempts.withLock { $0.count } > 1 }
            endpoint.serve(newer.keySetJSON)
            #expect(await ring.verdict(on: newer.keyID) == .keyFound)
            await Self.until { log.count("the fetched keys are kept after all") == 1 }
            let sinceNewer = attempts.withLock { attempts in Array(attempts.drop { $0 == older.keyID }) }
            #expect(sinceNewer == [newer.keyID, newer.keyID])
        }
    }

    @Test("A stop ends reading and storing without a warning.")
    func stopped() async throws {
        let keySet = Array(try SimulatedApple.generate().keySetJSON.utf8)
        let began = Atomic(0)
        let held: @Sendable () async throws -> Void = {
            began.add(1, ordering: .relaxed)
            try await Task.sleep(for: .seconds(1_000))
        }
        let reading = KeyRing.Source(
            fetch: { throw KeyEndpoint.Down() },
            persisted: {
                try await held()
                return .none
            },
            persist: { _, _ in }
        )
        let keeping = KeyRing.Source(fetch: { keySet }, persisted: { .none }, persist: { _, _ in try await held() })
        for (number, source) in [reading, keeping].enumerated() {
            let log = try await Self.withRing(source) { _, _ in
                await Self.until { began.load(ordering: .relaxed) > number }
            }
            #expect(log.count("kept") == 0)
        }
    }

    private struct Away: Error, CustomStringConvertible {
        var description: String { "PostgreSQL is away" }
    }

    /// Waits until something holds; the time limit of the suite ends it.
    private static func until(_ holds: () -> Bool) async {
        while !holds(), !Task.isCancelled {
            // Short, so that the pool is left to those who make it hold; cancellation ends the loop.
            try? await Task.sleep(for: .milliseconds(2))
        }
    }

    /// A ring without a limit on fetches, and its log.
    ///
    /// - Returns: all that it logged.
    @discardableResult
    private static func withRing(
        _ source: KeyRing.Source,
        _ body: (KeyRing, CollectedLog) async throws -> Void
    ) async throws -> CollectedLog {
        let log = CollectedLog()
        let ring = KeyRing(
            refresh: .seconds(3_600),
            floor: .zero,
            source: source,
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
        return log
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
    /// The resolution for a client that asks for this key.
    fileprivate func verdict(on kid: String) async -> KeySetCache.Resolution {
        await withCheckedContinuation { continuation in
            want(kid, holding: 0) { continuation.resume(returning: $0) }
        }
    }
}
