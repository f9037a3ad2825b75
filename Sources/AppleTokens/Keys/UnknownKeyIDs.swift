/// The `kid`s that a ``KeySetCache`` did not find, and the token bucket of the fetches that they may cause. It is bounded,
/// because forgers can invent names: a name that does not fit is requested again.
struct UnknownKeyIDs: Sendable {
    /// The maximum size of each of the two sets.
    static let limit = 1_024

    /// The time to refill the bucket by one fetch.
    private let floor: Duration
    /// The size of the bucket.
    private let burst: Int
    /// Requested since the last fetch began.
    private var requested: Set<String> = []
    /// Known to be absent from ``absentSince`` on, for one floor.
    private var absent: Set<String> = []
    private var absentSince: ContinuousClock.Instant?
    /// When the bucket will be full; nil if it was never used.
    private var fullAt: ContinuousClock.Instant?

    init(floor: Duration, burst: Int = 1) {
        self.floor = max(floor, .zero)
        self.burst = max(burst, 1)
    }

    mutating func keyRequested(_ kid: String) {
        guard requested.count < Self.limit else { return }
        requested.insert(kid)
    }

    /// - Returns: the names requested until now, which the result of this fetch settles.
    mutating func fetchBegan() -> Set<String> {
        defer { requested = [] }
        return requested
    }

    /// Takes a fetch that an unknown name caused from the bucket.
    mutating func fetchCaused(at now: ContinuousClock.Instant) {
        fullAt = max(fullAt ?? now, now) + floor
    }

    /// A fetch that began at `began` showed that these names are absent. The first ones are remembered if there are too many.
    mutating func settled(absent names: [String], fetchBeganAt began: ContinuousClock.Instant) {
        absent = Set(names.prefix(Self.limit))
        absentSince = began
    }

    /// A fetch failed that should have settled these names.
    mutating func notSettled(_ names: Set<String>) {
        for kid in names { keyRequested(kid) }
    }

    /// The names that a recent fetch showed to be absent.
    func absent(at now: ContinuousClock.Instant) -> Set<String> {
        guard let absentSince, now < absentSince + floor else { return [] }
        return absent
    }

    func isAbsent(_ kid: String, at now: ContinuousClock.Instant) -> Bool {
        absent(at: now).contains(kid)
    }

    /// When an unknown name may cause a fetch; nil if it may now.
    func fetchAllowedAt(_ now: ContinuousClock.Instant) -> ContinuousClock.Instant? {
        guard let fullAt else { return nil }
        let allowedAt = fullAt - floor * (burst - 1)
        return now < allowedAt ? allowedAt : nil
    }

    /// Whole seconds until then, at least 1.
    func secondsUntilFetchAllowed(at now: ContinuousClock.Instant) -> Int? {
        fetchAllowedAt(now).map { now.duration(to: $0).secondsRoundedUp }
    }
}

extension Duration {
    /// Whole seconds for `Retry-After`, rounded up to at least 1.
    var secondsRoundedUp: Int {
        let (seconds, attoseconds) = components
        return max(1, Int(seconds) + (attoseconds > 0 ? 1 : 0))
    }
}
