import AppleTokens
import AppleSimulator
import Basics
import Spool
import StoreTestSupport
import TestSupport
import Testing

@testable import Ingest

@Suite("A key rotation under a flood of invented key ids", .timeLimit(.minutes(10)))
struct RotationUnderFloodTests {
    private static let floor = Duration.milliseconds(300)
    /// The time for a fetch on this machine during the flood and other tests.
    private static let slack = Duration.seconds(2)

    /// Invents key ids, and lets go on in between.
    private func flood(_ fixture: IngestFixture, _ numbers: Range<Int>, like body: String) async {
        for start in stride(from: numbers.lowerBound, to: numbers.upperBound, by: 55) {
            let some = start..<min(start + 55, numbers.upperBound)
            let bodies = some.map { IngestFixture.body(body, naming: "invented\($0)") }
            let answers = await fixture.client.answers(bodies)
            #expect(!answers.contains(.acknowledged))
        }
    }

    /// Sends until it is acknowledged.
    ///
    /// - Returns: how long it was refused.
    private func send(_ body: String, to fixture: IngestFixture) async -> Duration {
        let start = ContinuousClock.now
        while await fixture.client.answer(body) != .acknowledged, !Task.isCancelled {
            // Short, so that the pool is left to the flood; cancellation ends the loop.
            try? await Task.sleep(for: .milliseconds(5))
        }
        return .now - start
    }

    private func rotate(_ fixture: IngestFixture, times: Int) async throws {
        var random = SystemRandomNumberGenerator()
        let signers = [fixture.apple, try SimulatedApple.generate(), try SimulatedApple.generate()]
        var longest = Duration.zero
        for round in 0..<times {
            let (old, new) = (signers[round % 3], signers[(round + 1) % 3])
            let like = try fixture.body(signedBy: old)
            let before = Int.random(in: 0...1_100, using: &random)
            let first = round * 1_100
            await flood(fixture, first..<(first + before), like: like)
            fixture.endpoint.serve(new.keySetJSON)
            let genuine = try fixture.body(sub: "person\(round)", id: "genuine\(round)", signedBy: new)
            async let rest: Void = flood(fixture, (first + before)..<(first + 1_100), like: like)
            let refused = await send(genuine, to: fixture)
            longest = max(longest, refused)
            #expect(refused <= Self.floor + Self.slack)
            await rest
        }
        print("rotation under flood: a genuine notification was refused for \(longest) at most")
        let stored = "SELECT count(*)::text FROM siwa.notifications WHERE jti LIKE 'genuine%'"
        while try await fixture.texts(stored) != ["\(times)"], !Task.isCancelled { await Task.yield() }
    }

    @Test("refuses no genuine notification for longer than the bucket's refill time, loses none, leaves no letters.")
    func withPostgreSQL() async throws {
        try await IngestFixture.with(floor: Self.floor, burst: 3, leeway: .zero, settles: true) { fixture in
            await fixture.untilStoring()
            let fetches = fixture.endpoint.fetches
            let start = ContinuousClock.now
            try await rotate(fixture, times: 50)
            let allowed = 3 + Int((.now - start) / Self.floor) + 1
            #expect(fixture.endpoint.fetches - fetches <= allowed)
            // The last ones go with the next fetch, which the bucket owes them.
            let open = "SELECT count(*)::text FROM siwa.dead_letters WHERE status = 'open'"
            while try await fixture.texts(open) != ["0"], !Task.isCancelled { await Task.yield() }
            let discarded = try await fixture.texts(
                "SELECT DISTINCT resolved_by FROM siwa.dead_letters WHERE status = 'discarded'"
            )
            #expect(discarded == ["siwad"])
        }
    }

    @Test("does the same while PostgreSQL is away.")
    func withSpool() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonRole.with(database) { role in
                let directory = try TemporaryDirectory()
                let spool = try Spool(directory: directory.path, limit: 4 << 20)
                try await IngestFixture.with(
                    database,
                    role.settings,
                    floor: Self.floor,
                    burst: 3,
                    leeway: .zero,
                    settles: true,
                    spool: spool
                ) { fixture in
                    await fixture.until { $0.service.storage == .database }
                    try await role.shutOut()
                    async let letIn: Void = {
                        await fixture.until { ($0.service.spoolBytes ?? 0) > 100_000 }
                        try await role.letIn()
                    }()
                    try await rotate(fixture, times: 10)
                    try await letIn
                }
            }
        }
    }

    @Test(
        "by the clock, refuses none for longer than the refill time and two fetches.",
        arguments: [Duration.milliseconds(300), .seconds(2), .seconds(60)]
    )
    func refillTime(floor: Duration) throws {
        let (old, new) = (try SimulatedApple.generate(), try SimulatedApple.generate())
        let start = ContinuousClock.now
        var longest = Duration.zero
        for rotation in 0..<20 {
            // At any point of the refill.
            let rotatedAt = start + floor * (2.0 + Double(rotation) / 20)
            let refused = try #require(refusal(from: old, to: new, at: rotatedAt, since: start, floor: floor))
            longest = max(longest, refused)
        }
        #expect(longest <= floor + Self.fetchTime * 2 + Self.tick * 3)
    }

    private static let tick = Duration.milliseconds(10)
    private static let fetchTime = Duration.milliseconds(50)

    /// How long the new key is refused under a flood, with one invented key id and one genuine notification at each tick.
    private func refusal(
        from old: SimulatedApple,
        to new: SimulatedApple,
        at rotatedAt: ContinuousClock.Instant,
        since start: ContinuousClock.Instant,
        floor: Duration
    ) -> Duration? {
        var cache = KeySetCache(refresh: .seconds(86_400), floor: floor, burst: 3, start: start)
        var now = start
        var fetchBegan: ContinuousClock.Instant?
        var number = 0
        while now < rotatedAt + floor * 10 {
            if let began = fetchBegan, now >= began + Self.fetchTime {
                let keys = KeySet(began >= rotatedAt ? new.keys : old.keys, fetchedAt: .now())
                fetchBegan = cache.fetchSucceeded(keys, at: now).fetchesAgain ? now : nil
            }
            if let due = cache.refreshDueAt, due <= now, case .fetch = cache.refreshDue(at: now) { fetchBegan = now }
            number += 1
            if case .fetchAndWait = cache.keyWanted("invented\(number)", waiter: 2 * number, at: now) {
                fetchBegan = now
            }
            if now >= rotatedAt {
                switch cache.keyWanted(new.keyID, waiter: 2 * number + 1, at: now) {
                case .answer(.keyFound): return now - rotatedAt
                case .fetchAndWait: fetchBegan = now
                case .answer, .wait: break
                }
            }
            now += Self.tick
        }
        return nil
    }

    @Test("loses not even a notification that is sent only once, as long as there is room for letters.")
    func sentOnce() async throws {
        try await IngestFixture.with(floor: Self.floor, burst: 3, leeway: .zero, settles: true) { fixture in
            await fixture.untilStoring()
            let new = try SimulatedApple.generate()
            let like = try fixture.body()
            // One after another, so that each causes a fetch of its own until the bucket is empty.
            for number in 0..<20 {
                _ = await fixture.client.answer(IngestFixture.body(like, naming: "invented\(number)"))
            }
            fixture.endpoint.serve(new.keySetJSON)
            _ = await fixture.client.answer(try fixture.body(id: "once", signedBy: new))
            while try await fixture.texts("SELECT jti FROM siwa.notifications") != ["once"], !Task.isCancelled {
                await Task.yield()
            }
        }
    }
}
