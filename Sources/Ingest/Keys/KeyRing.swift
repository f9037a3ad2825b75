package import AppleTokens
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
        /// Stores the keys of a set that was fetched; called again after an error, with these or newer ones.
        package var persist: @Sendable ([JSONWebKey]) async throws -> Void

        package init(
            fetch: @escaping @Sendable () async throws -> [UInt8],
            persisted: @escaping @Sendable () async throws -> KeySet,
            persist: @escaping @Sendable ([JSONWebKey]) async throws -> Void
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
        var unkept: [JSONWebKey]?
        /// The unusable keys that were logged.
        var ignored: [JSONWebKeySet.IgnoredKey] = []
    }

    private let state: Mutex<State>
    private let source: Source
    private let metrics: SiwadMetrics
    private let log: Log
    /// One element for each fetch that the cache asked for.
    private let demands: AsyncStream<Void>
    private let demand: AsyncStream<Void>.Continuation
    /// One element, however many sets came that must be stored.
    private let arrivals: AsyncStream<Void>
    private let arrival: AsyncStream<Void>.Continuation
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
        (self.demands, self.demand) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
        (self.arrivals, self.arrival) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
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
                state.withLock { $0.unkept = fetched }
                arrival.yield()
            }
            group.cancelAll()
        }
        stop()
    }

    /// Fetches nothing more; requests that wait for a key are answered that it is unavailable.
    package func stop() {
        settle { $0.stopped() }
        demand.finish()
    }

    // MARK: - Private parts

    /// Reads the stored keys once, unless a fetch makes them superfluous.
    private func loadPersisted() async {
        let warning = "kept signing keys could not be read; trying again until the key endpoint answers"
        await retry(warning, while: { keys.fetchedAt == nil }) {
            let kept = try await source.persisted()
            guard !kept.isEmpty, let confirmedAt = kept.confirmedAt else { return }
            settle { $0.persistedKeysLoaded(kept, age: WallTime.now().duration(since: confirmedAt), at: .now) }
            if keys.version == kept.version { metrics.keysFetchedAt.set(confirmedAt.seconds) }
            replacement.signal()
        }
    }

    /// Stores the fetched sets, the newest one only, until it is cancelled.
    private func keepFetched() async {
        let warning = "the fetched keys could not be kept for a start without Apple; trying again"
        for await _ in arrivals {
            let hasFailed = await retry(warning, while: { state.withLock { $0.unkept != nil } }) {
                guard let fetched = state.withLock({ $0.unkept }) else { return }
                try await source.persist(fetched)
                // A newer set, which arrived in the meantime, is stored next.
                state.withLock { if $0.unkept == fetched { $0.unkept = nil } }
            }
            if hasFailed { log.notice("the fetched keys are kept after all") }
        }
    }

    /// Makes attempts at growing intervals, until one succeeds, none is needed, or the task is cancelled.
    ///
    /// - Returns: whether one succeeded after others had failed.
    @discardableResult
    private func retry(
        _ warning: String,
        while isNeeded: () -> Bool,
        _ attempt: () async throws -> Void
    ) async -> Bool {
        var (pauses, repeated) = (Backoff(), RateLimitedLog())
        while isNeeded() {
            do {
                try await attempt()
                return repeated.reset()
            } catch {
                guard !Task.isCancelled, isNeeded() else { return false }
                if repeated.isDue("\(error)") { log.warning(warning, ["error": "\(error)"]) }
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

    /// Fetches once.
    ///
    /// - Returns: the keys; nil if it failed.
    private func fetch() async -> [JSONWebKey]? {
        let set: JSONWebKeySet
        // Before the fetch: what was received until here is older than the set.
        let askedAt = WallTime.now()
        do {
            let bytes = try await source.fetch()
            do {
                set = try JSONWebKeySet(parsing: bytes)
            } catch {
                metrics.keyFetches.increment("rejected")
                throw error
            }
        } catch {
            if !(error is JOSEError) { metrics.keyFetches.increment("failure") }
            log.warning("Apple's key set could not be fetched; the last good one stays", ["error": "\(error)"])
            ended { $0.fetchFailed(at: .now) }
            return nil
        }
        warn(of: set.ignored)
        metrics.keyFetches.increment("success")
        metrics.keysFetchedAt.set(askedAt.seconds)
        ended { $0.fetchSucceeded(KeySet(set, fetchedAt: askedAt), at: .now) }
        replacement.signal()
        return set.keys
    }

    /// Logs unusable keys when they are others than the last time.
    private func warn(of ignored: [JSONWebKeySet.IgnoredKey]) {
        guard state.withLock({ exchange(&$0.ignored, with: ignored) }) != ignored else { return }
        for key in ignored {
            log.warning(
                "a key of Apple's set is not usable",
                ["kid": key.keyID ?? "none that is valid", "reason": key.reason]
            )
        }
    }

    private func ended(_ input: (inout KeySetCache) -> KeySetCache.FetchEndedAction) {
        var fetchesAgain = false
        settle { cache in
            let action = input(&cache)
            fetchesAgain = action.fetchesAgain
            return action.resolutions
        }
        if fetchesAgain { demand.yield() }
    }

    /// Applies an input, and calls the waiters that it decides, outside of the lock.
    private func settle(_ input: (inout KeySetCache) -> [KeySetCache.ResolvedWaiter]) {
        let decided = state.withLock { state in
            input(&state.cache).map { resolution in
                (state.waiters.removeValue(forKey: resolution.waiter), resolution.resolution)
            }
        }
        for (waiter, resolution) in decided { waiter?(resolution) }
    }
}
