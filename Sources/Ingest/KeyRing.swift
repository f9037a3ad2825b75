package import AppleTokens
package import JOSE
import Synchronization
package import Telemetry

/// Apple's keys for all event loops: drives the ``KeySetCache`` with real fetches and a real clock.
package final class KeyRing: Sendable {
    /// Where keys come from and where they are kept.
    package struct Source: Sendable {
        /// Fetches the key set; throws an error whose description names the cause.
        package var fetch: @Sendable () async throws -> [UInt8]
        /// The keys that an earlier run kept, with the time at which they were confirmed; asked for again after an error.
        package var persisted: @Sendable () async throws -> KeySet
        /// Keeps the keys of a set that was fetched; called again after an error, with these or newer ones.
        package var persist: @Sendable ([JSONWebKey]) async throws -> Void

        /// A source of these three.
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
        /// The newest fetched keys, until somebody sees to it that they are kept.
        var unkept: [JSONWebKey]?
        /// The unusable keys that the log has heard of.
        var ignored: [JSONWebKeySet.IgnoredKey] = []
    }

    private let state: Mutex<State>
    private let source: Source
    private let metrics: SiwadMetrics
    private let log: Log
    /// One element for each fetch that the cache asked for.
    private let demands: AsyncStream<Void>
    private let demand: AsyncStream<Void>.Continuation
    /// One element, however many sets came that are to be kept.
    private let arrivals: AsyncStream<Void>
    private let arrival: AsyncStream<Void>.Continuation
    /// Rings when the next fetch is due sooner than it was.
    private let schedule = Alarm()
    /// Rings when another set is in force.
    let replacement = Alarm()

    /// A ring without keys; ``run()`` fills it.
    ///
    /// - Parameters:
    ///   - refresh: from a fetch to the next in the background.
    ///   - floor: the time after which unknown keys may cause one more fetch.
    ///   - burst: fetches that unknown keys may cause in a row.
    ///   - maximumAge: how long a set is believed that is not confirmed by another fetch.
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

    /// The keys in force.
    package var keys: KeySet { state.withLock { $0.cache.keys } }

    /// Asks for a key that ``keys`` lacked. `decided` is called once: here, or later on another thread.
    ///
    /// - Parameter bytes: how much memory `decided` holds on to until then.
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
        if isDueSooner { schedule.ring() }
        switch action {
        case .answer(let verdict): decided(verdict)
        case .wait: break
        case .fetchAndWait: demand.yield()
        }
    }

    /// Loads the persisted keys, then keeps the set fresh until ``stop()`` or cancellation.
    package func run() async {
        await withDiscardingTaskGroup { group in
            // Beside the fetches, both: neither a start nor whoever waits for a key waits for PostgreSQL.
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

    /// Fetches nothing more; whoever waits for a key is told that there is none at present.
    package func stop() {
        settle { $0.stopped() }
        demand.finish()
    }

    // MARK: - Private parts

    /// Loads the kept keys, once. Tries again until then, or until the endpoint has answered and nobody needs them.
    private func loadPersisted() async {
        var (pauses, complaint) = (Backoff(), Complaint())
        while keys.fetchedAt == nil {
            do {
                let kept = try await source.persisted()
                guard !kept.isEmpty, let confirmedAt = kept.confirmedAt else { return }
                settle { $0.persistedKeysLoaded(kept, age: WallTime.now().duration(since: confirmedAt), at: .now) }
                if keys.version == kept.version { metrics.keysFetchedAt.set(confirmedAt.seconds) }
                replacement.ring()
                return
            } catch {
                guard !Task.isCancelled, keys.fetchedAt == nil else { return }
                if complaint.isDue("\(error)") {
                    log.warning(
                        "kept signing keys could not be read; trying again until the key endpoint answers",
                        ["error": "\(error)"]
                    )
                }
            }
            // A cancelled sleep is the wanted end.
            if (try? await Task.sleep(for: pauses.next())) == nil { return }
        }
    }

    /// Keeps the fetched sets, one at a time, until it is cancelled. Tries again with the newest one there is.
    private func keepFetched() async {
        var (pauses, complaint) = (Backoff(), Complaint())
        for await _ in arrivals {
            while let fetched = state.withLock({ exchange(&$0.unkept, with: nil) }) {
                do {
                    try await source.persist(fetched)
                    pauses = Backoff()
                    if complaint.settled() { log.notice("the fetched keys are kept after all") }
                } catch {
                    guard !Task.isCancelled else { return }
                    if complaint.isDue("\(error)") {
                        log.warning(
                            "the fetched keys could not be kept for a start without Apple; trying again",
                            ["error": "\(error)"]
                        )
                    }
                    // A newer set that came meanwhile takes its place.
                    state.withLock { $0.unkept = $0.unkept ?? fetched }
                    // A cancelled sleep is the wanted end.
                    if (try? await Task.sleep(for: pauses.next())) == nil { return }
                }
            }
        }
    }

    private func refreshOnSchedule() async {
        while !Task.isCancelled {
            // What is due changes with the end of a fetch too.
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
                        + "look why Apple's key set can't be fetched"
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
    /// - Returns: the keys, to be kept; nil when it failed.
    private func fetch() async -> [JSONWebKey]? {
        let set: JSONWebKeySet
        // Before the question: what was received until here is older than the answer.
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
        replacement.ring()
        return set.keys
    }

    /// Warns of unusable keys once, and again when they are others.
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

    /// Applies an input and tells those whom it decides, outside of the lock.
    private func settle(_ input: (inout KeySetCache) -> [KeySetCache.ResolvedWaiter]) {
        let decided = state.withLock { state in
            input(&state.cache).map { resolution in
                (state.waiters.removeValue(forKey: resolution.waiter), resolution.resolution)
            }
        }
        for (waiter, verdict) in decided {
            waiter?(verdict)
        }
    }
}
