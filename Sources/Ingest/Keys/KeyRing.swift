package import AppleTokens
import Basics
package import JOSE
import Synchronization
package import Telemetry

/// Apple's keys for all event loops: performs the fetches that ``KeySetCache`` asks for.
package final class KeyRing: Sendable {
    package struct Source: Sendable {
        /// Fetches the key set; throws an error whose description names the cause.
        package var fetch: @Sendable () async throws -> [UInt8]
        /// Reads the keys that an earlier run stored, with the time of their confirmation; called again after an error.
        package var persisted: @Sendable () async throws -> KeySet
        /// Stores the keys of a set that was fetched, and how long ago that was; called again after an error, with these or newer
        /// ones.
        package var persist: @Sendable (_ keys: [JSONWebKey], _ age: Duration) async throws -> Void

        package init(
            fetch: @escaping @Sendable () async throws -> [UInt8],
            persisted: @escaping @Sendable () async throws -> KeySet,
            persist: @escaping @Sendable (_ keys: [JSONWebKey], _ age: Duration) async throws -> Void
        ) {
            self.fetch = fetch
            self.persisted = persisted
            self.persist = persist
        }
    }

    private struct State {
        var cache: KeySetCache
        var waiters: [Int: @Sendable (KeySetCache.Resolution) -> Void] = [:]
        var lastWaiter = 0
        /// The newest fetched keys, until they are stored.
        var unkept: (keys: [JSONWebKey], fetchedAt: ContinuousClock.Instant)?
        /// The unusable keys that were logged.
        var ignored: [JSONWebKeySet.IgnoredKey] = []
    }

    private let state: Mutex<State>
    private let source: Source
    private let metrics: SiwadMetrics
    private let log: Log
    private let faults: FaultLog
    /// One element for each fetch that the cache asked for.
    private let demands: AsyncStream<Void>
    private let demand: AsyncStream<Void>.Continuation
    /// A set came that must be stored.
    private let arrival = WakeupEvent()
    /// The next fetch is due sooner than it was.
    private let schedule = WakeupEvent()
    /// Another set is in force.
    let replacement = WakeupEvent()

    /// A ring without keys; ``run()`` fills it. The parameters have the meaning that they have for ``KeySetCache``.
    package init(
        refresh: Duration,
        floor: Duration,
        burst: Int = 1,
        maximumAge: Duration = .seconds(30 * 86_400),
        source: Source,
        metrics: SiwadMetrics,
        log: Log
    ) {
        let cache = KeySetCache(refresh: refresh, floor: floor, burst: burst, maximumAge: maximumAge, start: .now)
        self.state = Mutex(State(cache: cache))
        self.source = source
        self.metrics = metrics
        self.log = log
        faults = FaultLog(log)
        (self.demands, self.demand) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    package var keys: KeySet { state.withLock { $0.cache.keys } }

    /// Asks for a key that ``keys`` lacks. `decided` is called once: here, or later on another thread.
    ///
    /// - Parameter bytes: the memory that `decided` keeps until then.
    func want(_ kid: String, holding bytes: Int, decided: @escaping @Sendable (KeySetCache.Resolution) -> Void) {
        let (action, isDueSooner) = state.withLock { state in
            state.lastWaiter += 1
            let due = state.cache.refreshDueAt
            let action = state.cache.keyWanted(kid, waiter: state.lastWaiter, holding: bytes, at: .now)
            switch action {
            case .answer: break
            case .wait, .fetchAndWait: state.waiters[state.lastWaiter] = decided
            }
            return (action, state.cache.refreshDueAt != due)
        }
        if isDueSooner { schedule.signal() }
        switch action {
        case .answer(let resolution): decided(resolution)
        case .wait: break
        case .fetchAndWait: demand.yield()
        }
    }

    /// Loads the persisted keys, then keeps the set fresh until ``stop()`` or cancellation.
    package func run() async {
        await withDiscardingTaskGroup { group in
            // In tasks of their own: neither a start nor a request that waits for a key waits for PostgreSQL.
            group.addTask { await self.loadPersisted() }
            group.addTask { await self.keepFetched() }
            group.addTask { await self.refreshOnSchedule() }
            for await _ in demands {
                guard let fetched = await fetch() else { continue }
                state.withLock { $0.unkept = (fetched, .now) }
                arrival.signal()
            }
            group.cancelAll()
        }
        stop()
    }

    /// Fetches nothing more; requests that wait for a key are answered that it is unavailable.
    package func stop() {
        answer(state.withLock { $0.cache.stopped() })
        demand.finish()
    }

    // MARK: - Private parts

    /// Reads the stored keys once, unless a fetch makes them superfluous.
    private func loadPersisted() async {
        let warning = "kept signing keys could not be read; trying again until the key endpoint answers"
        _ = await retry(.keysRead, warning, while: { keys.fetchedAt == nil }) {
            let kept = try await source.persisted()
            guard !kept.isEmpty, let confirmedAt = kept.confirmedAt else { return }
            let age = WallTime.now().duration(since: confirmedAt)
            answer(state.withLock { $0.cache.persistedKeysLoaded(kept, age: age, at: .now) })
            if keys.version == kept.version { metrics.keysFetchedAt.set(confirmedAt.seconds) }
            replacement.signal()
        }
    }

    /// Stores the fetched sets, the newest one only, until it is cancelled.
    private func keepFetched() async {
        let warning = "the fetched keys could not be kept for a start without Apple; trying again"
        while true {
            await arrival.wait(atMost: .seconds(3_600))
            if Task.isCancelled { return }
            let hasFailed = await retry(.keysStored, warning, while: { state.withLock { $0.unkept != nil } }) {
                guard let (keys, fetchedAt) = state.withLock({ $0.unkept }) else { return }
                // PostgreSQL may have been away for days.
                try await source.persist(keys, .now - fetchedAt)
                // A newer set, which arrived in the meantime, is stored next.
                state.withLock { if $0.unkept?.fetchedAt == fetchedAt { $0.unkept = nil } }
            }
            if hasFailed { log.notice("the fetched keys are kept after all") }
        }
    }

    /// Makes attempts at growing intervals, until one succeeds, none is needed, or the task is cancelled.
    ///
    /// - Returns: whether one succeeded after others had failed.
    private func retry(
        _ topic: FaultLog.Topic,
        _ warning: String,
        while isNeeded: () -> Bool,
        _ attempt: () async throws -> Void
    ) async -> Bool {
        var pauses = Backoff()
        while isNeeded() {
            do {
                try await attempt()
                return faults.ended(topic)
            } catch {
                guard !Task.isCancelled, isNeeded() else { return false }
                faults.warning(topic, warning, error)
            }
            // A cancelled sleep ends the task.
            if (try? await Task.sleep(for: pauses.next())) == nil { return false }
        }
        return false
    }

    private func refreshOnSchedule() async {
        while !Task.isCancelled {
            // The end of a fetch changes what is due.
            let due = state.withLock { $0.cache.refreshDueAt } ?? .now + .milliseconds(100)
            await schedule.wait(atMost: max(.zero, min(due - .now, .seconds(5))))
            guard !Task.isCancelled else { return }
            let (action, isForgotten) = state.withLock { state in
                let hadKeys = !state.cache.keys.isEmpty
                return (state.cache.refreshDue(at: .now), hadKeys && state.cache.keys.isEmpty)
            }
            if isForgotten {
                log.error(
                    "the signing keys are no longer trusted: no fetch has confirmed them for SIWAD_KEYS_MAXIMUM_AGE; "
                        + "check why Apple's key set can't be fetched"
                )
            }
            switch action {
            case .fetch: demand.yield()
            case .none: break
            }
        }
    }

    /// Fetches once; nil if it failed.
    private func fetch() async -> [JSONWebKey]? {
        let set: JSONWebKeySet
        // Before the fetch: what was received until here is older than the set.
        let askedAt = WallTime.now()
        do {
            set = try JSONWebKeySet(parsing: try await source.fetch())
        } catch {
            metrics.keyFetches.increment(error is JOSEError ? "rejected" : "failure")
            log.warning("Apple's key set could not be fetched; the last good one stays", ["error": "\(error)"])
            ended(state.withLock { $0.cache.fetchFailed(at: .now) })
            return nil
        }
        if state.withLock({ exchange(&$0.ignored, with: set.ignored) }) != set.ignored {
            for key in set.ignored {
                let name = key.keyID ?? "none that is valid"
                log.warning("a key of Apple's set is not usable", ["kid": name, "reason": key.reason])
            }
        }
        metrics.keyFetches.increment("success")
        metrics.keysFetchedAt.set(askedAt.seconds)
        ended(state.withLock { $0.cache.fetchSucceeded(KeySet(set, fetchedAt: askedAt), at: .now) })
        replacement.signal()
        return set.keys
    }

    private func ended(_ action: KeySetCache.FetchEndedAction) {
        answer(action.resolutions)
        if action.fetchesAgain { demand.yield() }
    }

    /// Calls the waiters that are decided, outside of the lock.
    private func answer(_ resolved: [KeySetCache.ResolvedWaiter]) {
        for one in resolved {
            let decided = state.withLock { $0.waiters.removeValue(forKey: one.waiter) }
            decided?(one.resolution)
        }
    }
}
