public import AppleNotifications
public import JOSE
import Synchronization
public import Telemetry

/// Apple's keys for all event loops: drives the ``KeySetCache`` with real fetches and a real clock.
public final class KeyRing: Sendable {
    /// Where keys come from and where they are kept.
    public struct Source: Sendable {
        /// Fetches the key set; throws an error whose description names the cause.
        public var fetch: @Sendable () async throws -> [UInt8]
        /// The JSON Web Keys that an earlier run kept.
        public var persisted: @Sendable () async throws -> [JSONWebKey]
        /// Keeps the keys of a set that was fetched.
        public var persist: @Sendable ([JSONWebKey]) async throws -> Void

        /// A source of these three.
        public init(
            fetch: @escaping @Sendable () async throws -> [UInt8],
            persisted: @escaping @Sendable () async throws -> [JSONWebKey],
            persist: @escaping @Sendable ([JSONWebKey]) async throws -> Void
        ) {
            self.fetch = fetch
            self.persisted = persisted
            self.persist = persist
        }
    }

    private struct State {
        var cache: KeySetCache
        var waiters: [Int: @Sendable (KeySetCache.Verdict) -> Void] = [:]
        var lastWaiter = 0
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

    /// A ring without keys; ``run()`` fills it.
    public init(refresh: Duration, floor: Duration, source: Source, metrics: SiwadMetrics, log: Log) {
        self.state = Mutex(State(cache: KeySetCache(refresh: refresh, floor: floor, start: .now)))
        self.source = source
        self.metrics = metrics
        self.log = log
        (self.demands, self.demand) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    /// The keys in force.
    public var keys: KeySet { state.withLock { $0.cache.keys } }

    /// Asks for a key that ``keys`` lacked. `decided` is called once: here, or later on another thread.
    ///
    /// - Parameter bytes: how much memory `decided` holds on to until then.
    func want(_ kid: String, holding bytes: Int, decided: @escaping @Sendable (KeySetCache.Verdict) -> Void) {
        let action = state.withLock { state in
            state.lastWaiter += 1
            let action = state.cache.keyWanted(kid, waiter: state.lastWaiter, holding: bytes, at: .now)
            switch action {
            case .answer: break
            case .wait, .fetchAndWait: state.waiters[state.lastWaiter] = decided
            }
            return action
        }
        switch action {
        case .answer(let verdict): decided(verdict)
        case .wait: break
        case .fetchAndWait: demand.yield()
        }
    }

    /// Loads the persisted keys, then keeps the set fresh until ``stop()`` or cancellation.
    public func run() async {
        // Discarding: nobody waits for the children one by one, and a group that expects it keeps each until its own end.
        await withDiscardingTaskGroup { group in
            // Beside the fetches too: a PostgreSQL that doesn't answer holds up no start.
            group.addTask { await self.loadPersisted() }
            group.addTask { await self.refreshOnSchedule() }
            for await _ in demands {
                guard let fetched = await fetch() else { continue }
                // Beside the fetches: whoever waits for a key doesn't wait for PostgreSQL.
                group.addTask { await self.persist(fetched) }
            }
            group.cancelAll()
        }
        stop()
    }

    /// Fetches nothing more; whoever waits for a key is told that there is none at present.
    public func stop() {
        settle { $0.stopped() }
        demand.finish()
    }

    // MARK: - Private parts

    private func loadPersisted() async {
        do {
            let kept = try await source.persisted()
            guard !kept.isEmpty else { return }
            settle { $0.persistedKeysLoaded(KeySet(kept, fetchedAt: nil)) }
        } catch {
            log.warning("kept signing keys could not be read; going on without", ["error": "\(error)"])
        }
    }

    private func refreshOnSchedule() async {
        while !Task.isCancelled {
            // A fetch for an unknown key changes what is due, so look again now and then.
            let due = state.withLock { $0.cache.refreshDueAt } ?? .now + .seconds(1)
            do {
                try await Task.sleep(until: min(due, .now + .seconds(5)), clock: .continuous)
            } catch {
                return
            }
            switch state.withLock({ $0.cache.refreshDue(at: .now) }) {
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
        let now = WallTime.now()
        metrics.keysFetchedAt.set(Double(now.microseconds) / 1_000_000)
        ended { $0.fetchSucceeded(KeySet(set, fetchedAt: now), at: .now) }
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

    private func persist(_ keys: [JSONWebKey]) async {
        do {
            try await source.persist(keys)
        } catch {
            log.warning("the fetched keys could not be kept for a start without Apple", ["error": "\(error)"])
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
    private func settle(_ input: (inout KeySetCache) -> [KeySetCache.Resolution]) {
        let decided = state.withLock { state in
            input(&state.cache).map { resolution in
                (state.waiters.removeValue(forKey: resolution.waiter), resolution.verdict)
            }
        }
        for (waiter, verdict) in decided {
            waiter?(verdict)
        }
    }
}
