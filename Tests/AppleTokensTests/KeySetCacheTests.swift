@testable import AppleTokens
import AppleSimulator
import Basics
import JOSE
import Testing

/// Times are seconds after the start of the cache; the floor is a minute and the refresh an hour.
@Suite struct KeySetCacheTests {
    private static let start = ContinuousClock.now

    private func at(_ seconds: Double) -> ContinuousClock.Instant { Self.start + .seconds(seconds) }

    private func set(_ names: String..., fetched: Bool = true) throws -> KeySet {
        let key = try VerifierFixture.set().apple.key.publicKey
        let keys = try names.map { try JSONWebKey(keyID: $0, publicKey: key) }
        return KeySet(keys, fetchedAt: fetched ? WallTime(seconds: 0) : nil)
    }

    /// No keys, nothing under way, the first refresh due at 0.
    private func beginning() -> KeySetCache {
        KeySetCache(refresh: .seconds(3_600), floor: .seconds(60), start: Self.start)
    }

    /// The key `a`, fetched at 0; the next refresh is due at 3,600.
    private func ready() throws -> KeySetCache {
        var cache = beginning()
        #expect(cache.refreshDue(at: at(0)) == .fetch)
        #expect(cache.fetchSucceeded(try set("a"), at: at(0)) == ended())
        return cache
    }

    /// The key `a`, and a scheduled fetch under way since 3,600.
    private func refreshing() throws -> KeySetCache {
        var cache = try ready()
        #expect(cache.refreshDue(at: at(3_600)) == .fetch)
        return cache
    }

    /// The key `a`, and a fetch under way since 100 that waiter 1 caused by asking for `x`.
    private func asking() throws -> KeySetCache {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 1, at: at(100)) == .fetchAndWait)
        return cache
    }

    private func stopped() throws -> KeySetCache {
        var cache = try ready()
        #expect(cache.stopped().isEmpty)
        return cache
    }

    private func ended(_ resolutions: (Int, KeySetCache.Resolution)..., again: Bool = false) -> Ended {
        Ended(resolutions: resolutions.map { Resolved(waiter: $0.0, resolution: $0.1) }, fetchesAgain: again)
    }

    private func unavailable(_ seconds: Int) -> KeySetCache.Resolution { .keysUnavailable(retryAfterSeconds: seconds) }

    // MARK: Nothing under way

    @Test("At the beginning there are no keys and a refresh is due.")
    func atTheBeginning() {
        let cache = beginning()
        #expect(cache.keys.isEmpty)
        #expect(cache.refreshDueAt == at(0))
        #expect(cache.waiterCount == 0)
    }

    @Test("Idle: a refresh that is not due is not begun.")
    func idleRefreshNotDue() throws {
        var cache = try ready()
        #expect(cache.refreshDue(at: at(3_599.999)) == .none)
        #expect(cache.refreshDueAt == at(3_600))
    }

    @Test("Idle: a refresh that is due is begun, once.")
    func idleRefreshDue() throws {
        var cache = try ready()
        #expect(cache.refreshDue(at: at(3_600)) == .fetch)
        #expect(cache.refreshDueAt == nil)
        #expect(cache.refreshDue(at: at(3_600)) == .none)
    }

    @Test("Idle: a key that is there is found, whatever the clock says.")
    func idleKnownKey() throws {
        var cache = try ready()
        #expect(cache.keyWanted("a", waiter: 1, at: at(1)) == .answer(.keyFound))
        #expect(cache.keyWanted("a", waiter: 1, at: at(1e6)) == .answer(.keyFound))
        #expect(cache.waiterCount == 0)
    }

    @Test("Idle: an unknown key causes a fetch, even long before the next refresh.")
    func idleUnknownKey() throws {
        var cache = try ready()
        #expect(cache.keyWanted("x", waiter: 7, at: at(1)) == .fetchAndWait)
        #expect(cache.waiterCount == 1)
        #expect(cache.refreshDueAt == nil)
        #expect(cache.fetchSucceeded(try set("a", "x"), at: at(2)) == ended((7, .keyFound)))
        #expect(cache.refreshDueAt == at(3_602))
    }

    @Test("Idle: the end of a fetch that did not begin changes nothing.")
    func idleFetchEnded() throws {
        var cache = try ready()
        #expect(cache.fetchSucceeded(try set("b"), at: at(1)) == ended())
        #expect(cache.fetchFailed(at: at(1)) == ended())
        #expect(cache.keys.contains(kid: "a") && !cache.keys.contains(kid: "b"))
        #expect(cache.refreshDueAt == at(3_600))
    }

    @Test("Idle: persisted keys serve until a fetch succeeds and never after one.")
    func idlePersisted() throws {
        var cache = beginning()
        #expect(cache.persistedKeysLoaded(try set("p", fetched: false), age: .zero, at: at(0)).isEmpty)
        #expect(cache.keyWanted("p", waiter: 1, at: at(0)) == .answer(.keyFound))
        #expect(cache.keys.fetchedAt == nil)
        #expect(cache.refreshDueAt == at(0))
        #expect(cache.refreshDue(at: at(0)) == .fetch)
        #expect(cache.fetchSucceeded(try set("a"), at: at(1)) == ended())
        #expect(!cache.keys.contains(kid: "p"))
        #expect(cache.persistedKeysLoaded(try set("p", fetched: false), age: .zero, at: at(0)).isEmpty)
        #expect(!cache.keys.contains(kid: "p") && cache.keys.contains(kid: "a"))
    }

    // MARK: A fetch under way

    @Test("Fetching: all requests wait for the one fetch and receive its result.")
    func singleFlight() throws {
        var cache = try asking()
        #expect(cache.keyWanted("x", waiter: 2, at: at(100.1)) == .wait)
        #expect(cache.keyWanted("x", waiter: 3, at: at(100.2)) == .wait)
        #expect(cache.waiterCount == 3)
        var found = cache
        #expect(
            found.fetchSucceeded(try set("a", "x"), at: at(101))
                == ended((1, .keyFound), (2, .keyFound), (3, .keyFound))
        )
        #expect(
            cache.fetchSucceeded(try set("a"), at: at(101))
                == ended((1, .unknownKey), (2, .unknownKey), (3, .unknownKey))
        )
    }

    @Test("Fetching: an unusable key of the set is unavailable, never unknown, and is requested again.")
    func unusableKey() throws {
        var cache = try asking()
        #expect(cache.keyWanted("x", waiter: 2, at: at(100.1)) == .wait)
        let set = KeySet(try set("a").keys, unusable: ["x"], fetchedAt: WallTime(seconds: 0))
        #expect(cache.fetchSucceeded(set, at: at(101)) == ended((1, unavailable(59)), (2, unavailable(59))))
        #expect(cache.keyWanted("x", waiter: 3, at: at(110)) == .answer(unavailable(50)))
        #expect(cache.keyWanted("x", waiter: 4, at: at(160)) == .fetchAndWait)
        #expect(cache.fetchSucceeded(set, at: at(161)) == ended((4, unavailable(59))))
        #expect(cache.keyWanted("x", waiter: 5, at: at(220)) == .fetchAndWait)
        #expect(cache.fetchSucceeded(try self.set("a"), at: at(221)) == ended((5, .unknownKey)))
    }

    @Test("Fetching: a key that is there never waits.")
    func fetchingKnownKey() throws {
        for var cache in [try refreshing(), try asking()] {
            #expect(cache.keyWanted("a", waiter: 9, at: at(3_600)) == .answer(.keyFound))
        }
    }

    @Test("Fetching: no second fetch is begun on schedule.")
    func fetchingRefreshDue() throws {
        for var cache in [try refreshing(), try asking()] {
            #expect(cache.refreshDue(at: at(9_999)) == .none)
            #expect(cache.refreshDueAt == nil)
        }
    }

    @Test("Fetching: persisted keys answer requests for them while there is no fetched set.")
    func fetchingPersisted() throws {
        var cache = beginning()
        #expect(cache.refreshDue(at: at(0)) == .fetch)
        #expect(cache.keyWanted("p", waiter: 1, at: at(0)) == .wait)
        #expect(cache.keyWanted("q", waiter: 2, at: at(0)) == .wait)
        let found = cache.persistedKeysLoaded(try set("p", fetched: false), age: .zero, at: at(0))
        #expect(found == [Resolved(waiter: 1, resolution: .keyFound)])
        #expect(cache.waiterCount == 1)
        var later = try asking()
        #expect(later.persistedKeysLoaded(try set("x", fetched: false), age: .zero, at: at(0)).isEmpty)
        #expect(later.waiterCount == 1)
    }

    @Test("Fetching: a key asked for after the fetch began isn't settled by it, and causes the next one.")
    func requestedDuringFetch() throws {
        var cache = try refreshing()
        #expect(cache.keyWanted("x", waiter: 1, at: at(3_600.1)) == .wait)
        #expect(cache.fetchSucceeded(try set("a"), at: at(3_601)) == ended(again: true))
        #expect(cache.waiterCount == 1)
        #expect(cache.fetchSucceeded(try set("a"), at: at(3_602)) == ended((1, .unknownKey)))
        #expect(cache.refreshDueAt == at(7_202))
    }

    @Test("Fetching: a key asked for after the fetch began is found if the fetch brings it all the same.")
    func foundAfterRequestDuringFetch() throws {
        var cache = try refreshing()
        #expect(cache.keyWanted("x", waiter: 1, at: at(3_600.1)) == .wait)
        #expect(cache.fetchSucceeded(try set("a", "x"), at: at(3_601)) == ended((1, .keyFound)))
    }

    @Test("Fetching: an unsettled request is refused while the bucket forbids the next fetch.")
    func requestedDuringFetchWithinFloor() throws {
        var cache = try asking()
        #expect(cache.keyWanted("y", waiter: 2, at: at(100.5)) == .wait)
        #expect(cache.fetchSucceeded(try set("a"), at: at(101)) == ended((1, .unknownKey), (2, unavailable(59))))
        #expect(cache.waiterCount == 0)
    }

    @Test("Fetching: a failure refuses all waiting requests and keeps the set.")
    func fetchingFailed() throws {
        var cache = try asking()
        #expect(cache.keyWanted("y", waiter: 2, at: at(101)) == .wait)
        #expect(cache.fetchFailed(at: at(110)) == ended((1, unavailable(50)), (2, unavailable(50))))
        #expect(cache.keys.contains(kid: "a"))
        #expect(cache.refreshDueAt == at(111))
    }

    @Test("Fetching: a set without a key is a failure.")
    func fetchedNothing() throws {
        var cache = try asking()
        let nothing = KeySet([], fetchedAt: WallTime(seconds: 0))
        #expect(cache.fetchSucceeded(nothing, at: at(110)) == ended((1, unavailable(50))))
        #expect(cache.keys.contains(kid: "a"))
        #expect(cache.refreshDueAt == at(111))
    }

    @Test("Fetching: the stop refuses all waiting requests.")
    func fetchingStopped() throws {
        var cache = try asking()
        #expect(cache.stopped() == [Resolved(waiter: 1, resolution: unavailable(1))])
        #expect(cache.waiterCount == 0)
        #expect(cache.fetchSucceeded(try set("x"), at: at(101)) == ended())
    }

    @Test("Fetching: with 8,192 waiting requests the next one is refused.")
    func tooManyWaiters() throws {
        var cache = try asking()
        for waiter in 2...KeySetCache.maximumWaiters {
            guard cache.keyWanted("x", waiter: waiter, at: at(100)) == .wait else {
                Issue.record("waiter \(waiter) was turned away")
                return
            }
        }
        #expect(cache.keyWanted("x", waiter: 0, at: at(100)) == .answer(unavailable(1)))
        #expect(cache.keyWanted("a", waiter: 0, at: at(100)) == .answer(.keyFound))
        #expect(cache.fetchSucceeded(try set("x"), at: at(101)).resolutions.count == KeySetCache.maximumWaiters)
    }

    @Test("Fetching: a request is refused if it and those waiting would use more than 32 MiB.")
    func tooManyBytes() throws {
        var cache = try asking()
        let half = KeySetCache.maximumWaitingBytes / 2
        #expect(cache.keyWanted("x", waiter: 2, holding: half, at: at(100)) == .wait)
        #expect(cache.keyWanted("y", waiter: 3, holding: half - 1_000, at: at(100)) == .wait)
        #expect(cache.keyWanted("x", waiter: 4, holding: 1_001, at: at(100)) == .answer(unavailable(1)))
        #expect(cache.keyWanted("x", waiter: 5, holding: 1_000, at: at(100)) == .wait)
        #expect(cache.keyWanted("x", waiter: 6, holding: 1, at: at(100)) == .answer(unavailable(1)))
        let ended = cache.fetchSucceeded(try set("x", "y"), at: at(101))
        #expect(ended.resolutions.map(\.waiter).sorted() == [1, 2, 3, 5])
        // There is room again during the next fetch.
        #expect(cache.keyWanted("z", waiter: 7, holding: 1_000, at: at(9_999)) == .fetchAndWait)
        #expect(cache.keyWanted("z", waiter: 8, holding: half, at: at(9_999)) == .wait)
    }

    // MARK: Stopped

    @Test("Stopped: nothing begins any more, and known keys are still found.")
    func afterTheStop() throws {
        var cache = try stopped()
        #expect(cache.refreshDueAt == nil)
        #expect(cache.waiterCount == 0)
        #expect(cache.refreshDue(at: at(9_999)) == .none)
        #expect(cache.keyWanted("x", waiter: 1, at: at(9_999)) == .answer(unavailable(1)))
        #expect(cache.keyWanted("a", waiter: 1, at: at(9_999)) == .answer(.keyFound))
        #expect(cache.fetchSucceeded(try set("b"), at: at(9_999)) == ended())
        #expect(cache.fetchFailed(at: at(9_999)) == ended())
        #expect(cache.persistedKeysLoaded(try set("p", fetched: false), age: .zero, at: at(0)).isEmpty)
        #expect(cache.stopped().isEmpty)
        #expect(cache.keys.contains(kid: "a") && !cache.keys.contains(kid: "b"))
    }
}

private typealias Ended = KeySetCache.FetchEndedAction
private typealias Resolved = KeySetCache.ResolvedWaiter
