/// Decides when Apple's key set is fetched and how notifications that wait for a key are answered.
///
/// A pure state machine: inputs are methods in the past tense, and the caller performs the returned action. The rules:
/// - One fetch at a time. A request for a key that the set lacks waits for the fetch under way.
/// - Unknown `kid`s cause as many fetches as a token bucket allows: `burst` in a row, and one more per `floor`. So a forger
///   cannot make siwad flood Apple, and delays a new key for at most `floor`: a refused `kid` is fetched as soon as the
///   bucket allows it. Scheduled refreshes do not use the bucket.
/// - A key is absent if a fetch that *began* after the request for it succeeded without it. A fetch that was already under
///   way can show the earlier set and proves nothing. The key stays absent for one floor from the beginning of that fetch,
///   and of each further fetch within that time that lacks it too.
/// - A key that is in the set but unusable is not absent: it is requested again, because its publisher may correct it.
/// - After a failed fetch, or one without keys, the last good set stays for `maximumAge` since it was confirmed.
package struct KeySetCache: Sendable {
    /// More requests are answered `keysUnavailable`.
    package static let maximumWaiters = 8_192
    /// The memory that waiting requests may use together.
    package static let maximumWaitingBytes = 32 << 20
    /// In bytes. A longer `kid` cannot be in an accepted set, so it never causes a fetch.
    package static let maximumKeyIDBytes = 256

    /// The last good set, or the set stored by an earlier run, or none.
    package private(set) var keys: KeySet
    private let refreshInterval: Duration
    private let maximumAge: Duration
    /// When ``keys`` become too old to be trusted.
    private var trustedUntil: ContinuousClock.Instant?
    private var unknown: UnknownKeyIDs
    /// Failed fetches since the last successful one.
    private var failures = 0
    private var state: State

    private enum State {
        case idle(Idle)
        case fetching(Fetching)
        case stopped
    }

    private struct Idle {
        let refreshDueAt: ContinuousClock.Instant
        /// When the bucket allows a fetch for the names that it refused; nil if it refused none.
        var refusedDueAt: ContinuousClock.Instant?

        var dueAt: ContinuousClock.Instant { min(refreshDueAt, refusedDueAt ?? refreshDueAt) }
    }

    private struct Fetching {
        let began: ContinuousClock.Instant
        /// Requested before this fetch began, so that its result settles them.
        let requested: Set<String>
        private(set) var waiters: [Waiter] = []
        private var waitingBytes = 0

        init(began: ContinuousClock.Instant, requested: Set<String>) {
            self.began = began
            self.requested = requested
        }

        /// Returns false if there is no room. There is always room for the first waiter.
        mutating func add(_ waiter: Waiter) -> Bool {
            let fits =
                waiters.count < KeySetCache.maximumWaiters
                && waiter.bytes <= KeySetCache.maximumWaitingBytes - waitingBytes
            guard waiters.isEmpty || fits else { return false }
            waiters.append(waiter)
            waitingBytes += waiter.bytes
            return true
        }

        mutating func removeWaiters(foundIn keys: KeySet) -> [Waiter] {
            let found = waiters.filter { keys.contains(kid: $0.kid) }
            waiters.removeAll { keys.contains(kid: $0.kid) }
            waitingBytes -= found.reduce(0) { $0 + $1.bytes }
            return found
        }
    }

    private struct Waiter {
        let id: Int
        let kid: String
        let bytes: Int
    }

    /// Creates a cache without keys whose first refresh is due at `start`.
    ///
    /// - Parameters:
    ///   - refresh: from a successful fetch to the next scheduled one; at least 100 ms.
    ///   - floor: the time after which unknown keys may cause one more fetch.
    ///   - burst: fetches that unknown keys may cause in a row.
    ///   - maximumAge: how long a set is trusted that no other fetch confirms.
    package init(
        refresh: Duration,
        floor: Duration,
        burst: Int = 1,
        maximumAge: Duration = .seconds(30 * 86_400),
        start: ContinuousClock.Instant
    ) {
        self.keys = .none
        self.refreshInterval = max(refresh, .milliseconds(100))
        self.maximumAge = maximumAge
        self.unknown = UnknownKeyIDs(floor: floor, burst: burst)
        self.state = .idle(Idle(refreshDueAt: start))
    }

    /// When to call ``refreshDue(at:)``; nil while a fetch is under way and after ``stopped()``.
    package var refreshDueAt: ContinuousClock.Instant? {
        if case .idle(let idle) = state { idle.dueAt } else { nil }
    }

    package var waiterCount: Int {
        if case .fetching(let fetching) = state { fetching.waiters.count } else { 0 }
    }
}

// MARK: - Inputs

extension KeySetCache {
    /// The keys of earlier runs were read from the database. They are used until a fetch succeeds.
    ///
    /// - Parameter age: the time since they were confirmed.
    /// - Returns: the waiters that one of these keys resolves.
    package mutating func persistedKeysLoaded(
        _ persisted: KeySet,
        age: Duration,
        at now: ContinuousClock.Instant
    ) -> [ResolvedWaiter] {
        if keys.fetchedAt == nil, age < maximumAge {
            keys = persisted
            // Negative with a clock that is behind the database's.
            trustedUntil = now + (maximumAge - max(age, .zero))
        }
        guard case .fetching(var fetching) = state else { return [] }
        let found = fetching.removeWaiters(foundIn: keys)
        state = .fetching(fetching)
        return Self.resolve(.keyFound, to: found)
    }

    /// A notification names a key that ``keys`` lacked.
    ///
    /// - Parameter bytes: the memory that the waiting request uses, its token included.
    package mutating func keyWanted(
        _ kid: String,
        waiter: Int,
        holding bytes: Int = 0,
        at now: ContinuousClock.Instant
    ) -> KeyWantedAction {
        if keys.contains(kid: kid) { return .answer(.keyFound) }
        guard 1...Self.maximumKeyIDBytes ~= kid.utf8.count else { return .answer(.unknownKey) }
        let waiter = Waiter(id: waiter, kid: kid, bytes: bytes)
        switch state {
        case .idle(var idle):
            if unknown.isAbsent(kid, at: now) { return .answer(.unknownKey) }
            if let seconds = unknown.secondsUntilFetchAllowed(at: now) {
                unknown.keyRequested(kid)
                idle.refusedDueAt = unknown.fetchAllowedAt(now)
                state = .idle(idle)
                return .answer(.keysUnavailable(retryAfterSeconds: seconds))
            }
            unknown.fetchCaused(at: now)
            beginFetch(for: [waiter], at: now)
            return .fetchAndWait
        case .fetching(var fetching):
            if unknown.isAbsent(kid, at: now) { return .answer(.unknownKey) }
            if !fetching.requested.contains(kid) { unknown.keyRequested(kid) }
            // Moved out of the state, so that adding a waiter to thousands does not copy them.
            state = .stopped
            let hasRoom = fetching.add(waiter)
            state = .fetching(fetching)
            return hasRoom ? .wait : .answer(.keysUnavailable(retryAfterSeconds: 1))
        case .stopped:
            return .answer(.keysUnavailable(retryAfterSeconds: 1))
        }
    }

    package mutating func refreshDue(at now: ContinuousClock.Instant) -> RefreshDueAction {
        forgetKeys(tooOldAt: now)
        guard case .idle(let idle) = state, now >= idle.dueAt else { return .none }
        if now < idle.refreshDueAt { unknown.fetchCaused(at: now) }
        beginFetch(for: [], at: now)
        return .fetch
    }

    /// The fetch under way returned a set. A set without keys counts as a failure.
    package mutating func fetchSucceeded(_ fetched: KeySet, at now: ContinuousClock.Instant) -> FetchEndedAction {
        guard !fetched.isEmpty else { return fetchFailed(at: now) }
        guard case .fetching(let fetching) = state else { return .none }
        keys = fetched
        trustedUntil = now + maximumAge
        failures = 0
        return settle(fetching, at: now)
    }

    package mutating func fetchFailed(at now: ContinuousClock.Instant) -> FetchEndedAction {
        guard case .fetching(let fetching) = state else { return .none }
        failures += 1
        let backoff = Self.backoff(failures: failures, refresh: refreshInterval)
        let seconds = max(unknown.secondsUntilFetchAllowed(at: now) ?? 1, backoff.secondsRoundedUp)
        unknown.notSettled(fetching.requested)
        state = .idle(Idle(refreshDueAt: now + backoff))
        return FetchEndedAction(
            resolutions: Self.resolve(.keysUnavailable(retryAfterSeconds: seconds), to: fetching.waiters),
            fetchesAgain: false
        )
    }

    /// The process is stopping: no fetch follows, and all waiters are answered.
    package mutating func stopped() -> [ResolvedWaiter] {
        defer { state = .stopped }
        guard case .fetching(let fetching) = state else { return [] }
        return Self.resolve(.keysUnavailable(retryAfterSeconds: 1), to: fetching.waiters)
    }
}

// MARK: - Answering waiters

extension KeySetCache {
    /// Removes keys that no fetch has confirmed for too long.
    private mutating func forgetKeys(tooOldAt now: ContinuousClock.Instant) {
        guard let trustedUntil, now >= trustedUntil else { return }
        keys = .none
        self.trustedUntil = nil
    }

    private mutating func beginFetch(for waiters: [Waiter], at now: ContinuousClock.Instant) {
        var fetching = Fetching(began: now, requested: unknown.fetchBegan().union(waiters.map(\.kid)))
        // There is room for one waiter, and for several that waited together before.
        for waiter in waiters { _ = fetching.add(waiter) }
        state = .fetching(fetching)
    }

    /// Answers the waiters that ``keys`` settle, which `fetching` returned. The others cause another fetch now, or are
    /// refused if the bucket forbids it.
    private mutating func settle(_ fetching: Fetching, at now: ContinuousClock.Instant) -> FetchEndedAction {
        let keys = keys
        // The names just requested come first, in case not all are remembered.
        let names = Array(fetching.requested) + unknown.absent(at: fetching.began).subtracting(fetching.requested)
        unknown.settled(absent: names.filter { keys.lacks(kid: $0) }, fetchBeganAt: fetching.began)
        let found = fetching.waiters.filter { keys.contains(kid: $0.kid) }
        let missing = fetching.waiters.filter { !keys.contains(kid: $0.kid) }
        let settled = missing.filter { fetching.requested.contains($0.kid) }
        let absent = settled.filter { keys.lacks(kid: $0.kid) }
        let unusable = settled.filter { !keys.lacks(kid: $0.kid) }
        let open = missing.filter { !fetching.requested.contains($0.kid) }
        let allowedAt = unknown.fetchAllowedAt(now)
        let unavailable = Resolution.keysUnavailable(
            retryAfterSeconds: unknown.secondsUntilFetchAllowed(at: now) ?? 1
        )
        var resolutions = Self.resolve(.keyFound, to: found) + Self.resolve(.unknownKey, to: absent)
        resolutions += Self.resolve(unavailable, to: unusable)

        if !open.isEmpty, allowedAt == nil {
            unknown.fetchCaused(at: now)
            beginFetch(for: open, at: now)
            return FetchEndedAction(resolutions: resolutions, fetchesAgain: true)
        }
        resolutions += Self.resolve(unavailable, to: open)
        state = .idle(Idle(refreshDueAt: now + refreshInterval, refusedDueAt: open.isEmpty ? nil : allowedAt))
        return FetchEndedAction(resolutions: resolutions, fetchesAgain: false)
    }

    private static func resolve(_ resolution: Resolution, to waiters: [Waiter]) -> [ResolvedWaiter] {
        waiters.map { ResolvedWaiter(waiter: $0.id, resolution: resolution) }
    }

    /// 1 s after the first failure, doubled after each further one, up to five minutes or the refresh interval.
    private static func backoff(failures: Int, refresh: Duration) -> Duration {
        min(.seconds(1 << min(failures - 1, 9)), .seconds(300), refresh)
    }
}

// MARK: - Actions

extension KeySetCache {
    package enum Resolution: Sendable, Hashable {
        /// ``KeySetCache/keys`` has it: verify with that set.
        case keyFound
        case unknownKey
        /// Unknown at present, or the key is unusable. Retry after this many seconds, at least 1.
        case keysUnavailable(retryAfterSeconds: Int)
    }

    package struct ResolvedWaiter: Sendable, Hashable {
        /// The number given to ``KeySetCache/keyWanted(_:waiter:holding:at:)``.
        package let waiter: Int
        package let resolution: Resolution
    }

    package enum KeyWantedAction: Sendable, Hashable {
        case answer(Resolution)
        /// Keep the request until a ``ResolvedWaiter`` names it.
        case wait
        case fetchAndWait
    }

    package enum RefreshDueAction: Sendable, Hashable {
        case fetch
        case none
    }

    package struct FetchEndedAction: Sendable, Hashable {
        package let resolutions: [ResolvedWaiter]
        /// True if another fetch must begin now, for a key that the ended one could not settle.
        package let fetchesAgain: Bool

        static let none = FetchEndedAction(resolutions: [], fetchesAgain: false)
    }
}
