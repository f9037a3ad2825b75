/// Decides when Apple's key set is fetched and what becomes of the notifications that wait for a key.
///
/// A state machine and nothing else: inputs are methods in the past tense, the caller carries out the action that comes
/// back. Times are passed in and only compared with each other. The rules:
/// - One fetch at a time; everybody who wants a key that the set lacks waits for the one under way.
/// - Unknown `kid`s cause as many fetches as a token bucket allows: `burst` in a row, and one more per `floor`. So a forger
///   can't turn us against Apple, and holds up a new key for no longer than `floor`: a `kid` that the bucket turns away
///   is asked for as soon as the bucket allows it. Refreshes on schedule don't count for the bucket.
/// - A key is known to be absent when a fetch that *began* after somebody asked for it succeeded without it. A fetch
///   that was under way already may show the set as it was before: it settles nothing about that key. It stays known
///   for a floor from that beginning, and from the beginning of each fetch within it that lacks the key as well.
/// - A key that the set has but that can't be used is not absent: the publisher may mend it, so it is asked for again.
/// - A fetch that fails or brings no key keeps the last good set, for as long as `maximumAge` since it was confirmed.
package struct KeySetCache: Sendable {
    /// Waiting for a key at most; beyond that the answer is `keysUnavailable`.
    package static let maximumWaiters = 8_192
    /// What those who wait may hold on to, in bytes. Genuine notifications are about a kilobyte, so that this turns none of
    /// them away before there are too many; made-up ones may be as large as a body.
    package static let maximumWaitingBytes = 33_554_432
    /// No key of an accepted set has a longer `kid` (bytes), so that one is never worth a fetch.
    package static let maximumKeyIDBytes = 256

    /// The set in force: the last good one, before that the persisted one, before that none.
    package private(set) var keys: KeySet
    private let refreshInterval: Duration
    private let maximumAge: Duration
    /// When ``keys`` are too old to be believed.
    private var trustedUntil: ContinuousClock.Instant?
    private var state: State

    private enum State {
        case idle(Idle)
        case fetching(Fetching)
        case stopped
    }

    /// Nothing under way; the next refresh is due at a time.
    private struct Idle {
        var memory: KeyIDMemory
        /// Fetches that failed since the last one that succeeded.
        let failures: Int
        let refreshDueAt: ContinuousClock.Instant
        /// When the bucket allows the fetch for the names that it turned away; nil: it turned none away.
        var owedAt: ContinuousClock.Instant?

        /// When the next fetch is due, for either cause.
        var dueAt: ContinuousClock.Instant { min(refreshDueAt, owedAt ?? refreshDueAt) }
    }

    /// One fetch under way.
    private struct Fetching {
        var memory: KeyIDMemory
        let failures: Int
        let began: ContinuousClock.Instant
        /// Asked for before this fetch began, so that its result settles them.
        var inQuestion: Set<String>
        private(set) var waiters: [Waiter]
        /// The sum over the waiters.
        private var waitingBytes = 0

        init(memory: consuming KeyIDMemory, failures: Int, beginningAt now: ContinuousClock.Instant) {
            self.inQuestion = memory.fetchBegan()
            self.memory = memory
            self.failures = failures
            self.began = now
            self.waiters = []
        }

        /// Has one more wait; false when there is no room. The first always has.
        mutating func add(_ waiter: Waiter) -> Bool {
            let fits =
                waiters.count < KeySetCache.maximumWaiters
                && waiter.bytes <= KeySetCache.maximumWaitingBytes - waitingBytes
            guard waiters.isEmpty || fits else { return false }
            waiters.append(waiter)
            waitingBytes += waiter.bytes
            return true
        }

        /// Takes out those who wait for one of these keys.
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
        /// What it holds on to.
        let bytes: Int
    }

    /// What follows a fetch.
    private struct Ending {
        let next: State
        let action: FetchEndedAction
    }

    /// A cache without keys whose first refresh is due at `start`.
    ///
    /// - Parameters:
    ///   - refresh: from a successful fetch to the next on schedule; at least 100 ms.
    ///   - floor: the time after which unknown keys may cause one more fetch.
    ///   - burst: fetches that unknown keys may cause in a row after a quiet time.
    ///   - maximumAge: how long a set is believed that is not confirmed by another fetch.
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
        self.state = .idle(Idle(memory: KeyIDMemory(floor: floor, burst: burst), failures: 0, refreshDueAt: start))
    }

    /// When ``refreshDue(at:)`` is worth calling; nil while a fetch is under way and after the stop.
    package var refreshDueAt: ContinuousClock.Instant? {
        switch state {
        case .idle(let idle): idle.dueAt
        case .fetching, .stopped: nil
        }
    }

    /// How many wait for a fetch.
    package var waiterCount: Int {
        switch state {
        case .idle, .stopped: 0
        case .fetching(let fetching): fetching.waiters.count
        }
    }
}

// MARK: - Inputs

extension KeySetCache {
    /// The keys of earlier runs were read from the database. They serve until a fetch succeeds and never replace one.
    ///
    /// - Parameter age: the time since they were confirmed.
    /// - Returns: who can go on, having waited for one of these keys.
    package mutating func persistedKeysLoaded(
        _ persisted: KeySet,
        age: Duration,
        at now: ContinuousClock.Instant
    ) -> [Resolution] {
        if keys.fetchedAt == nil, age < maximumAge {
            keys = persisted
            trustedUntil = now + (maximumAge - age)
        }
        switch takeState() {
        case .idle(let idle):
            state = .idle(idle)
            return []
        case .fetching(var fetching):
            let found = fetching.removeWaiters(foundIn: keys)
            state = .fetching(fetching)
            return Self.tell(.keyFound, to: found)
        case .stopped:
            state = .stopped
            return []
        }
    }

    /// A notification names a key that the set at hand lacked.
    ///
    /// - Parameter bytes: how much memory it takes while it waits.
    package mutating func keyWanted(
        _ kid: String,
        waiter: Int,
        holding bytes: Int = 0,
        at now: ContinuousClock.Instant
    ) -> KeyWantedAction {
        if keys.contains(kid: kid) { return .answer(.keyFound) }
        guard 1...Self.maximumKeyIDBytes ~= kid.utf8.count else { return .answer(.unknownKey) }
        switch takeState() {
        case .idle(var idle):
            if idle.memory.isAbsent(kid, at: now) {
                state = .idle(idle)
                return .answer(.unknownKey)
            }
            if let seconds = idle.memory.secondsUntilFetchAllowed(at: now) {
                idle.memory.asked(for: kid)
                idle.owedAt = idle.memory.fetchAllowedAt(now)
                state = .idle(idle)
                return .answer(.keysUnavailable(retryAfterSeconds: seconds))
            }
            idle.memory.causedFetch(at: now)
            var fetching = Fetching(memory: idle.memory, failures: idle.failures, beginningAt: now)
            fetching.inQuestion.insert(kid)
            // The first always has room.
            _ = fetching.add(Waiter(id: waiter, kid: kid, bytes: bytes))
            state = .fetching(fetching)
            return .fetchAndWait
        case .fetching(var fetching):
            if fetching.memory.isAbsent(kid, at: now) {
                state = .fetching(fetching)
                return .answer(.unknownKey)
            }
            if !fetching.inQuestion.contains(kid) { fetching.memory.asked(for: kid) }
            let hasRoom = fetching.add(Waiter(id: waiter, kid: kid, bytes: bytes))
            state = .fetching(fetching)
            return hasRoom ? .wait : .answer(.keysUnavailable(retryAfterSeconds: 1))
        case .stopped:
            state = .stopped
            return .answer(.keysUnavailable(retryAfterSeconds: 1))
        }
    }

    /// The time came that ``refreshDueAt`` named.
    package mutating func refreshDue(at now: ContinuousClock.Instant) -> RefreshDueAction {
        forgetKeys(tooOldAt: now)
        switch takeState() {
        case .idle(var idle):
            guard now >= idle.dueAt else {
                state = .idle(idle)
                return .none
            }
            if now < idle.refreshDueAt { idle.memory.causedFetch(at: now) }
            state = .fetching(Fetching(memory: idle.memory, failures: idle.failures, beginningAt: now))
            return .fetch
        case .fetching(let fetching):
            state = .fetching(fetching)
            return .none
        case .stopped:
            state = .stopped
            return .none
        }
    }

    /// The fetch under way brought a set. One without a key is a failure.
    package mutating func fetchSucceeded(_ fetched: KeySet, at now: ContinuousClock.Instant) -> FetchEndedAction {
        guard !fetched.isEmpty else { return fetchFailed(at: now) }
        switch takeState() {
        case .idle(let idle):
            state = .idle(idle)
            return .none
        case .fetching(let fetching):
            keys = fetched
            trustedUntil = now + maximumAge
            let ending = Self.settled(fetching, by: fetched, at: now, refresh: refreshInterval)
            state = ending.next
            return ending.action
        case .stopped:
            state = .stopped
            return .none
        }
    }

    /// The fetch under way failed, or what it brought was no key set.
    package mutating func fetchFailed(at now: ContinuousClock.Instant) -> FetchEndedAction {
        switch takeState() {
        case .idle(let idle):
            state = .idle(idle)
            return .none
        case .fetching(var fetching):
            let failures = fetching.failures + 1
            let backoff = Self.backoff(failures: failures, refresh: refreshInterval)
            let seconds = max(fetching.memory.secondsUntilFetchAllowed(at: now) ?? 1, backoff.secondsRoundedUp)
            fetching.memory.unsettled(fetching.inQuestion)
            state = .idle(Idle(memory: fetching.memory, failures: failures, refreshDueAt: now + backoff))
            return FetchEndedAction(
                resolutions: Self.tell(.keysUnavailable(retryAfterSeconds: seconds), to: fetching.waiters),
                fetchesAgain: false
            )
        case .stopped:
            state = .stopped
            return .none
        }
    }

    /// The process is ending: nothing is fetched any more, and nobody is left waiting.
    package mutating func stopped() -> [Resolution] {
        switch takeState() {
        case .idle, .stopped:
            state = .stopped
            return []
        case .fetching(let fetching):
            state = .stopped
            return Self.tell(.keysUnavailable(retryAfterSeconds: 1), to: fetching.waiters)
        }
    }
}

// MARK: - What becomes of the waiters

extension KeySetCache {
    /// Keys that were not confirmed for too long are believed no more.
    private mutating func forgetKeys(tooOldAt now: ContinuousClock.Instant) {
        guard let trustedUntil, now >= trustedUntil else { return }
        keys = .none
        self.trustedUntil = nil
    }

    /// The state, to be put back or replaced on every way out of an input. Taken rather than looked at, so that adding a
    /// waiter to thousands doesn't copy them.
    private mutating func takeState() -> State {
        exchange(&state, with: .stopped)
    }

    /// Answers whom the set answers. Who asked while the fetch was under way and isn't answered by it causes another one
    /// at once, or is turned away when the floor forbids that.
    private static func settled(
        _ fetching: Fetching,
        by fetched: KeySet,
        at now: ContinuousClock.Instant,
        refresh: Duration
    ) -> Ending {
        var memory = fetching.memory
        // Those just asked for come first where not all are remembered.
        let names = Array(fetching.inQuestion) + memory.absent(at: fetching.began).subtracting(fetching.inQuestion)
        memory.settled(absent: names.filter { fetched.lacks(kid: $0) }, fetchBeganAt: fetching.began)
        let found = fetching.waiters.filter { fetched.contains(kid: $0.kid) }
        let missing = fetching.waiters.filter { !fetched.contains(kid: $0.kid) }
        let settled = missing.filter { fetching.inQuestion.contains($0.kid) }
        let unknown = settled.filter { fetched.lacks(kid: $0.kid) }
        let unusable = settled.filter { !fetched.lacks(kid: $0.kid) }
        let open = missing.filter { !fetching.inQuestion.contains($0.kid) }
        let seconds = memory.secondsUntilFetchAllowed(at: now) ?? 1
        var resolutions = tell(.keyFound, to: found) + tell(.unknownKey, to: unknown)
        resolutions += tell(.keysUnavailable(retryAfterSeconds: seconds), to: unusable)

        if !open.isEmpty, memory.secondsUntilFetchAllowed(at: now) == nil {
            memory.causedFetch(at: now)
            var next = Fetching(memory: memory, failures: 0, beginningAt: now)
            next.inQuestion.formUnion(open.map(\.kid))
            // They had room before.
            for waiter in open { _ = next.add(waiter) }
            return Ending(
                next: .fetching(next),
                action: FetchEndedAction(resolutions: resolutions, fetchesAgain: true)
            )
        }
        resolutions += tell(.keysUnavailable(retryAfterSeconds: seconds), to: open)
        let owedAt = open.isEmpty ? nil : memory.fetchAllowedAt(now)
        return Ending(
            next: .idle(Idle(memory: memory, failures: 0, refreshDueAt: now + refresh, owedAt: owedAt)),
            action: FetchEndedAction(resolutions: resolutions, fetchesAgain: false)
        )
    }

    private static func tell(_ verdict: Verdict, to waiters: [Waiter]) -> [Resolution] {
        waiters.map { Resolution(waiter: $0.id, verdict: verdict) }
    }

    /// 1 s after the first failure, then twice as long each time, up to five minutes or the refresh interval.
    private static func backoff(failures: Int, refresh: Duration) -> Duration {
        min(.seconds(1 << min(failures - 1, 9)), .seconds(300), refresh)
    }
}
