import AppleTokens
import AppleSimulator
import Basics
import JOSE
import Testing

/// Times are seconds after the start of the cache; the floor is a minute and the refresh an hour.
@Suite struct KeySetCacheFloorTests {
    private static let start = ContinuousClock.now

    private func at(_ seconds: Double) -> ContinuousClock.Instant { Self.start + .seconds(seconds) }

    private func set(_ names: String..., unusable: [String] = []) throws -> KeySet {
        let key = try VerifierFixture.set().apple.key.publicKey
        let keys = try names.map { try JSONWebKey(keyID: $0, publicKey: key) }
        return KeySet(keys, unusable: unusable, fetchedAt: WallTime(seconds: 0))
    }

    private func ready(refresh: Duration = .seconds(3_600), floor: Duration = .seconds(60)) throws -> KeySetCache {
        var cache = KeySetCache(refresh: refresh, floor: floor, start: Self.start)
        _ = cache.refreshDue(at: at(0))
        _ = cache.fetchSucceeded(try set("a"), at: at(0))
        return cache
    }

    private func unavailable(_ seconds: Int) -> KeySetCache.KeyWantedAction {
        .answer(.keysUnavailable(retryAfterSeconds: seconds))
    }

    @Test("Within the floor another unknown key causes no fetch, and exactly at its end it does.")
    func floor() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(101))
        #expect(cache.keyWanted("y", waiter: 2, at: at(101)) == unavailable(59))
        #expect(cache.keyWanted("y", waiter: 2, at: at(159.5)) == unavailable(1))
        #expect(cache.keyWanted("y", waiter: 2, at: at(160)) == .fetchAndWait)
    }

    @Test("A key that the bucket refused is fetched as soon as the bucket allows it, without a second request.")
    func owed() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(101))
        #expect(cache.refreshDueAt == at(3_701))
        #expect(cache.keyWanted("y", waiter: 2, at: at(110)) == unavailable(50))
        #expect(cache.refreshDueAt == at(160))
        #expect(cache.refreshDue(at: at(159.9)) == .none)
        #expect(cache.refreshDue(at: at(160)) == .fetch)
        _ = cache.fetchSucceeded(try set("a", "y"), at: at(161))
        #expect(cache.keyWanted("y", waiter: 3, at: at(161)) == .answer(.keyFound))
        // It was taken from the bucket.
        #expect(cache.keyWanted("z", waiter: 4, at: at(162)) == unavailable(58))
    }

    @Test("A key that the ended fetch cannot settle is remembered if the bucket forbids the next fetch.")
    func owedAfterWaiting() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        #expect(cache.keyWanted("y", waiter: 2, at: at(100.5)) == .wait)
        _ = cache.fetchSucceeded(try set("a"), at: at(101))
        #expect(cache.refreshDueAt == at(160))
    }

    @Test("Fetched and stored keys that no fetch confirms are trusted for at most the maximum age.")
    func maximumAge() throws {
        func cache() -> KeySetCache {
            KeySetCache(refresh: .seconds(10), floor: .seconds(60), maximumAge: .seconds(100), start: Self.start)
        }
        var fetched = cache()
        _ = fetched.refreshDue(at: at(0))
        _ = fetched.fetchSucceeded(try set("a"), at: at(1))
        _ = fetched.refreshDue(at: at(11))
        _ = fetched.fetchFailed(at: at(12))
        _ = fetched.refreshDue(at: at(100.9))
        #expect(fetched.keys.contains(kid: "a"))
        _ = fetched.refreshDue(at: at(101))
        #expect(fetched.keys.isEmpty)
        _ = fetched.fetchSucceeded(try set("a"), at: at(102))
        #expect(fetched.keys.contains(kid: "a"))

        let key = try VerifierFixture.set().apple.key.publicKey
        let kept = KeySet([try JSONWebKey(keyID: "k", publicKey: key)], fetchedAt: nil)
        var late = cache()
        _ = late.persistedKeysLoaded(kept, age: .seconds(100), at: at(0))
        #expect(late.keys.isEmpty)
        var early = cache()
        _ = early.persistedKeysLoaded(kept, age: .seconds(90), at: at(0))
        #expect(early.keys.contains(kid: "k"))
        _ = early.refreshDue(at: at(10))
        #expect(early.keys.isEmpty)
        // Stored an hour ahead of a clock that is behind.
        var ahead = cache()
        _ = ahead.persistedKeysLoaded(kept, age: .seconds(-3_600), at: at(0))
        #expect(ahead.keys.contains(kid: "k"))
        _ = ahead.refreshDue(at: at(100))
        #expect(ahead.keys.isEmpty)
    }

    /// A flood of invented names, a rotation at some time in it, and a notification by the new key that is sent again
    /// when `Retry-After` says so.
    @Test("A flood of invented names refuses a rotated key for no longer than the floor.", arguments: 0..<50)
    func floodThenRotation(_ seed: UInt64) throws {
        var random = SeededNumbers(seed)
        let latency = 0.2
        var cache = KeySetCache(refresh: .seconds(3_600), floor: .seconds(60), burst: 5, start: Self.start)
        _ = cache.refreshDue(at: at(0))
        _ = cache.fetchSucceeded(try set("old"), at: at(0))
        let (old, rotated) = (try set("old"), try set("old", "new"))
        let rotation = Double.random(in: 1...200, using: &random)
        var (fetchEnds, served) = (Double?.none, old)
        var nextAsk = rotation + .random(in: 0...70, using: &random)
        var (firstAsked, accepted) = (Double?.none, Double?.none)
        var (now, invented, fetches) = (1.0, 0, 0)
        func began() {
            fetches += 1
            (fetchEnds, served) = (now + latency, now >= rotation ? rotated : old)
        }
        while accepted == nil, now < 1_000 {
            now += .random(in: 0.001...0.2, using: &random)
            if let end = fetchEnds, now >= end {
                fetchEnds = nil
                let action = cache.fetchSucceeded(served, at: at(now))
                if action.fetchesAgain { began() }
            }
            if let due = cache.refreshDueAt, at(now) >= due, cache.refreshDue(at: at(now)) == .fetch { began() }
            invented += 1
            if cache.keyWanted("invented\(invented)", waiter: invented, at: at(now)) == .fetchAndWait { began() }
            guard now >= nextAsk else { continue }
            firstAsked = firstAsked ?? now
            switch cache.keyWanted("new", waiter: 0, at: at(now)) {
            case .answer(.keyFound): accepted = now
            case .answer(.keysUnavailable(let seconds)): nextAsk = now + Double(seconds)
            case .answer(.unknownKey): nextAsk = now + 60
            case .fetchAndWait:
                began()
                nextAsk = now
            case .wait: nextAsk = now
            }
        }
        let waited = try #require(accepted) - (try #require(firstAsked))
        // The answer comes in whole seconds, and after the fetch.
        #expect(waited <= 60 + latency + 1.5, "\(waited)")
        #expect(fetches <= 5 + 1 + Int(now / 60) + 1)
    }

    @Test(
        "During any flood, a key ID is fetched no later than the bucket's refill time after the first request for it."
    )
    func genuineKeyInFlood() throws {
        let (floor, latency, step) = (20, 3, 0.25)
        for (burst, firstRequest) in [(1, 1.0), (1, 100.0), (5, 2.5), (5, 101.75), (5, 113.25)] {
            var cache = KeySetCache(
                refresh: .seconds(7),
                floor: .seconds(floor),
                burst: burst,
                maximumAge: .seconds(86_400),
                start: Self.start
            )
            var fetchEnds: Double?
            var requestedBeforeFetch = false
            var found: Double?
            for tick in 0..<800 where found == nil {
                let now = Double(tick) * step
                func began() {
                    fetchEnds = now + Double(latency)
                    requestedBeforeFetch = now >= firstRequest
                }
                if cache.refreshDue(at: at(now)) == .fetch { began() }
                for number in 0..<50
                where cache.keyWanted("forged\(tick).\(number)", waiter: 1, at: at(now)) == .fetchAndWait {
                    began()
                }
                if now == firstRequest, cache.keyWanted("new", waiter: 2, at: at(now)) == .fetchAndWait { began() }
                if let end = fetchEnds, now >= end {
                    fetchEnds = nil
                    if requestedBeforeFetch { found = now }
                    if cache.fetchSucceeded(try set("old"), at: at(now)).fetchesAgain { began() }
                }
            }
            // A fetch that is under way must end before the next one can begin.
            let limit = Double(max(floor, latency) + latency)
            #expect(try #require(found) - firstRequest <= limit, "burst \(burst), at \(firstRequest)")
        }
    }

    @Test("A failed fetch uses the bucket too.")
    func floorAfterFailure() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        _ = cache.fetchFailed(at: at(105))
        #expect(cache.keyWanted("x", waiter: 2, at: at(106)) == unavailable(54))
        #expect(cache.keyWanted("x", waiter: 3, at: at(160)) == .fetchAndWait)
    }

    @Test("A scheduled refresh does not use the bucket.")
    func scheduleAndFloor() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(0.5)) == .fetchAndWait)
    }

    @Test("A key that a fetch has shown to be absent is unknown until the floor has passed since that fetch.")
    func absent() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(101))
        #expect(cache.keyWanted("x", waiter: 2, at: at(101)) == .answer(.unknownKey))
        #expect(cache.keyWanted("x", waiter: 3, at: at(159.999)) == .answer(.unknownKey))
        #expect(cache.keyWanted("x", waiter: 4, at: at(160)) == .fetchAndWait)
    }

    @Test("A key that was absent stays so while the next fetch is under way, and is found once a fetch brings it.")
    func absentWhileFetching() throws {
        var cache = try ready(refresh: .seconds(30))
        #expect(cache.keyWanted("x", waiter: 1, at: at(10)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(10))
        #expect(cache.refreshDue(at: at(40)) == .fetch)
        #expect(cache.keyWanted("x", waiter: 2, at: at(41)) == .answer(.unknownKey))
        _ = cache.fetchSucceeded(try set("a", "x"), at: at(42))
        #expect(cache.keyWanted("x", waiter: 3, at: at(43)) == .answer(.keyFound))
    }

    @Test("A key that was turned away is settled by the next refresh on schedule.")
    func settledBySchedule() throws {
        var cache = try ready(refresh: .seconds(30))
        #expect(cache.keyWanted("x", waiter: 1, at: at(10)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(10))
        #expect(cache.keyWanted("y", waiter: 2, at: at(20)) == unavailable(50))
        #expect(cache.refreshDue(at: at(40)) == .fetch)
        _ = cache.fetchSucceeded(try set("a"), at: at(41))
        #expect(cache.keyWanted("y", waiter: 3, at: at(42)) == .answer(.unknownKey))
        #expect(cache.keyWanted("x", waiter: 4, at: at(42)) == .answer(.unknownKey))
    }

    @Test("A key that is absent stays so while each fetch on schedule lacks it too, for a floor after the last one.")
    func absentThroughSchedule() throws {
        var cache = try ready(refresh: .seconds(30))
        #expect(cache.keyWanted("x", waiter: 1, at: at(10)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(10))
        for second in [40, 70, 100] as [Double] {
            #expect(cache.refreshDue(at: at(second)) == .fetch)
            _ = cache.fetchSucceeded(try set("a"), at: at(second))
            #expect(cache.keyWanted("x", waiter: 2, at: at(second)) == .answer(.unknownKey))
        }
        #expect(cache.keyWanted("x", waiter: 3, at: at(159.999)) == .answer(.unknownKey))
        #expect(cache.keyWanted("x", waiter: 4, at: at(160)) == .fetchAndWait)
    }

    @Test("A key is requested again if it was absent longer ago than the floor when a scheduled fetch begins.")
    func absentBeforeSchedule() throws {
        var cache = try ready(refresh: .seconds(70))
        #expect(cache.keyWanted("x", waiter: 1, at: at(10)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(10))
        #expect(cache.refreshDue(at: at(80)) == .fetch)
        _ = cache.fetchSucceeded(try set("a"), at: at(81))
        #expect(cache.keyWanted("x", waiter: 2, at: at(82)) == .fetchAndWait)
    }

    @Test("A key that was absent and then comes without being usable is absent no more.")
    func absentThenUnusable() throws {
        var cache = try ready(refresh: .seconds(30))
        #expect(cache.keyWanted("x", waiter: 1, at: at(10)) == .fetchAndWait)
        _ = cache.fetchSucceeded(try set("a"), at: at(10))
        #expect(cache.refreshDue(at: at(40)) == .fetch)
        _ = cache.fetchSucceeded(try set("a", unusable: ["x"]), at: at(41))
        #expect(cache.keyWanted("x", waiter: 2, at: at(42)) == unavailable(28))
    }

    @Test("A failed fetch settles nothing, and what it was to settle is settled by the next one.")
    func settledAfterFailure() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        _ = cache.fetchFailed(at: at(101))
        #expect(cache.keyWanted("x", waiter: 2, at: at(101)) == unavailable(59))
        #expect(cache.refreshDue(at: at(102)) == .fetch)
        _ = cache.fetchSucceeded(try set("a"), at: at(103))
        #expect(cache.keyWanted("x", waiter: 3, at: at(104)) == .answer(.unknownKey))
    }

    @Test("A name that no key can have causes no fetch.")
    func impossibleNames() throws {
        var cache = try ready()
        #expect(cache.keyWanted("", waiter: 1, at: at(100)) == .answer(.unknownKey))
        let long = String(repeating: "k", count: 257)
        #expect(cache.keyWanted(long, waiter: 1, at: at(100)) == .answer(.unknownKey))
        #expect(cache.keyWanted(String(repeating: "k", count: 256), waiter: 1, at: at(100)) == .fetchAndWait)
    }

    @Test("A flood of invented names causes one fetch per floor.")
    func flood() throws {
        var cache = try ready()
        var fetches = 0
        for number in 0..<20_000 {
            let now = at(100 + Double(number) / 200)
            if cache.keyWanted("forged-\(number)", waiter: number, at: now) == .fetchAndWait {
                fetches += 1
                _ = cache.fetchSucceeded(try set("a"), at: now)
            }
        }
        #expect(fetches == 2)
        #expect(cache.keyWanted("a", waiter: 0, at: at(201)) == .answer(.keyFound))
    }

    @Test("Refreshes are as frequent as they are wanted, up to ten a second.")
    func shortestRefresh() throws {
        for refresh in [Duration.milliseconds(100), .milliseconds(99), .zero] {
            #expect(try ready(refresh: refresh).refreshDueAt == Self.start + .milliseconds(100))
        }
        #expect(try ready(refresh: .milliseconds(500)).refreshDueAt == Self.start + .milliseconds(500))
    }

    @Test("Failures are retried after 1 s and then twice as long each time, up to five minutes; a success ends that.")
    func backoff() throws {
        var cache = try ready()
        var now = 3_600.0
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] as [Double] {
            #expect(cache.refreshDue(at: at(now)) == .fetch)
            _ = cache.fetchFailed(at: at(now))
            #expect(cache.refreshDueAt == at(now + wait))
            now += wait
        }
        #expect(cache.refreshDue(at: at(now)) == .fetch)
        _ = cache.fetchSucceeded(try set("a"), at: at(now))
        #expect(cache.refreshDueAt == at(now + 3_600))
        #expect(cache.refreshDue(at: at(now + 3_600)) == .fetch)
        _ = cache.fetchFailed(at: at(now + 3_600))
        #expect(cache.refreshDueAt == at(now + 3_601))
    }

    @Test("A retry never comes later than a refresh would.")
    func backoffWithinRefresh() throws {
        var cache = try ready(refresh: .seconds(5))
        var now = 5.0
        for wait in [1, 2, 4, 5, 5] as [Double] {
            #expect(cache.refreshDue(at: at(now)) == .fetch)
            _ = cache.fetchFailed(at: at(now))
            #expect(cache.refreshDueAt == at(now + wait))
            now += wait
        }
    }

    @Test("Failures of fetches that unknown keys cause lengthen the retries too.")
    func backoffAcrossCauses() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        _ = cache.fetchFailed(at: at(101))
        #expect(cache.refreshDue(at: at(102)) == .fetch)
        _ = cache.fetchFailed(at: at(103))
        #expect(cache.refreshDueAt == at(105))
    }

    @Test("Without a floor every unknown key causes a fetch.")
    func noFloor() throws {
        var cache = try ready(floor: .zero)
        for second in 1...3 {
            #expect(cache.keyWanted("x", waiter: second, at: at(Double(second))) == .fetchAndWait)
            let ended = cache.fetchSucceeded(try set("a"), at: at(Double(second)))
            #expect(ended.resolutions.map(\.resolution) == [.unknownKey])
        }
    }
}

/// Numbers that are the same for the same seed (SplitMix64).
private struct SeededNumbers: RandomNumberGenerator {
    private var state: UInt64

    init(_ seed: UInt64) {
        state = seed
    }

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var bits = state
        bits = (bits ^ (bits >> 30)) &* 0xBF58_476D_1CE4_E5B9
        bits = (bits ^ (bits >> 27)) &* 0x94D0_49BB_1331_11EB
        return bits ^ (bits >> 31)
    }
}
