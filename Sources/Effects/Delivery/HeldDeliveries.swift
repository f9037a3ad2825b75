import AccountStore

/// The deliveries of an endpoint that this process holds: claimed, under way, or ended with an outcome that is not stored.
///
/// What a kill of the process would repeat, requests under way and outcomes that are not stored, never exceeds the limit that
/// the caller passes.
struct HeldDeliveries: Sendable {
    struct Held: Sendable {
        let delivery: ClaimedDelivery
        /// From before the claim, so that the claim does not end earlier than this process reckons.
        let claimedAt: ContinuousClock.Instant
        /// It is sent although the circuit is open.
        let isProbe: Bool

        /// False if its claim might end before an answer comes.
        func isFresh(at now: ContinuousClock.Instant) -> Bool { now - claimedAt < HeldDeliveries.longestWait }
    }

    /// The longest time between a claim and its request.
    static let longestWait = DeliveryQueue.claimGrace / 2

    /// In the order of sending. The first `sent` ones are under way or have ended.
    private var waiting: [Held] = []
    private var sent = 0
    private(set) var underWay = 0
    private(set) var unsettled = 0
    /// Retries that wait or are under way.
    private(set) var retries = 0
    private var ahead: ClaimAhead

    init(at now: ContinuousClock.Instant) {
        ahead = ClaimAhead(at: now)
    }

    /// Claimed and not sent.
    var unsent: Int { waiting.count - sent }

    /// The deliveries under way and the waiting ones.
    var count: Int { underWay + unsent }

    /// True if storing outcomes lets more requests be sent.
    func areBlocked(below limit: Int) -> Bool { unsettled * 4 >= limit * 3 }

    /// How many more to claim.
    ///
    /// - Parameter limit: the requests at the same time.
    mutating func capacity(below limit: Int, at now: ContinuousClock.Instant) -> Int {
        let ahead = ahead.count(at: now)
        // Many at a time, so that PostgreSQL finds them with few statements.
        return unsent <= ahead / 2 ? max(0, limit + ahead - count) : 0
    }

    // MARK: - Inputs

    mutating func claimed(_ deliveries: [ClaimedDelivery], areProbes: Bool, at time: ContinuousClock.Instant) {
        waiting += deliveries.map { Held(delivery: $0, claimedAt: time, isProbe: areProbes) }
        retries += deliveries.count(where: \.isRetry)
    }

    /// The next delivery to send, which is under way from now on.
    mutating func next(below limit: Int, at now: ContinuousClock.Instant) -> Held? {
        guard unsent > 0, waiting[sent].isFresh(at: now), waiting[sent].isProbe || underWay + unsettled < limit else {
            return nil
        }
        defer { sent += 1 }
        underWay += 1
        return waiting[sent]
    }

    mutating func requestEnded(_ held: Held) {
        underWay -= 1
        unsettled += 1
        if held.delivery.isRetry { retries -= 1 }
        ahead.requestEnded()
    }

    /// Outcomes were stored, or their claims have ended.
    mutating func settled(_ count: Int) { unsettled -= count }

    /// Removes what can't be sent soon.
    ///
    /// - Parameters:
    ///   - isStopped: nothing is sent at present but probes.
    ///   - isFinished: nothing is sent any more.
    mutating func givenBack(isStopped: Bool, isFinished: Bool, at now: ContinuousClock.Instant) -> [Held] {
        waiting.removeFirst(sent)
        sent = 0
        func isKept(_ held: Held) -> Bool {
            held.isFresh(at: now) && !isFinished && (held.isProbe || !isStopped)
        }
        let removed = waiting.filter { !isKept($0) }
        waiting.removeAll { !isKept($0) }
        retries -= removed.count { $0.delivery.isRetry }
        return removed
    }
}

/// How many deliveries to claim before they can be sent, so that a fast endpoint never waits for PostgreSQL, and a slow one holds
/// no more than it is sent soon: as many as it was sent in the last pace.
private struct ClaimAhead: Sendable {
    /// Other processes can't send what is claimed here.
    private static let most = 512

    private var measuredSince: ContinuousClock.Instant
    private var ended = 0
    private var current = 0

    init(at now: ContinuousClock.Instant) {
        measuredSince = now
    }

    mutating func requestEnded() { ended += 1 }

    mutating func count(at now: ContinuousClock.Instant) -> Int {
        let time = now - measuredSince
        guard time >= EndpointLane.pace else { return current }
        current = min(Int(Double(ended) * (EndpointLane.pace / time)), Self.most)
        (measuredSince, ended) = (now, 0)
        return current
    }
}
