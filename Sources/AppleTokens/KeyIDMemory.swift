/// What a ``KeySetCache`` remembers of names that no key had, from one fetch to the next. Bounded, since anybody can make
/// names up: what doesn't fit is asked for anew.
struct KeyIDMemory: Sendable {
    /// Names remembered in each of the two sets, at most.
    static let limit = 1_024

    /// The time after which one more fetch may be caused by an unknown name.
    private let floor: Duration
    /// Fetches that unknown names may cause in a row after a quiet time.
    private let burst: Int
    /// Asked for and not settled.
    private var asked: Set<String> = []
    /// Known to be absent since ``absentSince``, for as long as the floor.
    private var absent: Set<String> = []
    private var absentSince: ContinuousClock.Instant?
    /// When the bucket of fetches is full again; nil: it never was used.
    private var fullAt: ContinuousClock.Instant?

    /// A memory of nothing, with a full bucket.
    init(floor: Duration, burst: Int = 1) {
        self.floor = max(floor, .zero)
        self.burst = max(burst, 1)
    }

    /// Somebody asked for a key that isn't there.
    mutating func asked(for kid: String) {
        guard asked.count < Self.limit else { return }
        asked.insert(kid)
    }

    /// A fetch begins.
    ///
    /// - Returns: the names asked for until now, which its result will settle.
    mutating func fetchBegan() -> Set<String> {
        defer { asked = [] }
        return asked
    }

    /// A fetch begins that an unknown name causes: it is taken from the bucket.
    mutating func causedFetch(at now: ContinuousClock.Instant) {
        fullAt = max(fullAt ?? now, now) + floor
    }

    /// A fetch that began at `began` succeeded, and of the names it was to settle lacks these; the first ones count most.
    mutating func settled(absent names: [String], fetchBeganAt began: ContinuousClock.Instant) {
        absent = Set(names.prefix(Self.limit))
        absentSince = began
    }

    /// A fetch failed: what it was to settle is open again.
    mutating func unsettled(_ names: Set<String>) {
        for kid in names { asked(for: kid) }
    }

    /// The names of which a recent enough fetch has shown that there is no such key.
    func absent(at now: ContinuousClock.Instant) -> Set<String> {
        guard let absentSince, now < absentSince + floor else { return [] }
        return absent
    }

    /// Whether a recent enough fetch has shown that there is no such key.
    func isAbsent(_ kid: String, at now: ContinuousClock.Instant) -> Bool {
        absent(at: now).contains(kid)
    }

    /// When an unknown name may cause a fetch; nil when it may already.
    func fetchAllowedAt(_ now: ContinuousClock.Instant) -> ContinuousClock.Instant? {
        guard let fullAt else { return nil }
        let allowedAt = fullAt - floor * (burst - 1)
        return now < allowedAt ? allowedAt : nil
    }

    /// Whole seconds until an unknown name may cause a fetch, at least 1; nil when it may already.
    func secondsUntilFetchAllowed(at now: ContinuousClock.Instant) -> Int? {
        fetchAllowedAt(now).map { now.duration(to: $0).secondsRoundedUp }
    }
}

extension Duration {
    /// Whole seconds, rounded up to at least 1: what `Retry-After` can say.
    var secondsRoundedUp: Int {
        let (seconds, attoseconds) = components
        return max(1, Int(seconds) + (attoseconds > 0 ? 1 : 0))
    }
}
