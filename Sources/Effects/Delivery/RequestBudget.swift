import Synchronization

/// Limits the requests of all endpoints together. Each endpoint has one request of its own that the limit leaves it, so that a
/// slow endpoint can't stop another one.
final class RequestBudget: Sendable {
    private let shared: Mutex<Int>

    init(_ limit: Int) {
        shared = Mutex(limit)
    }

    /// Takes up to `count` requests in addition to the endpoint's own, and returns how many.
    func take(upTo count: Int) -> Int {
        shared.withLock { shared in
            let taken = max(0, min(count, shared))
            shared -= taken
            return taken
        }
    }

    func giveBack(_ count: Int) {
        shared.withLock { $0 += count }
    }
}

/// Limits the requests of an endpoint in a second.
struct RequestRate: Sendable, Equatable {
    /// Beyond these, counts and pauses would not fit into their types. SQL may have stored any number above zero.
    private static let range = 0.001...1_000_000.0

    /// nil: no limit.
    let perSecond: Double?
    /// The requests that may be made at `time`, at most as many as in a second.
    private var allowance: Double
    private var time: ContinuousClock.Instant

    init(_ perSecond: Double?, at now: ContinuousClock.Instant) {
        let rate = perSecond.flatMap { $0.isFinite ? $0 : nil }
        self.perSecond = rate.map { min(max($0, Self.range.lowerBound), Self.range.upperBound) }
        allowance = 1
        time = now
    }

    /// The number of requests that may be made.
    mutating func available(at now: ContinuousClock.Instant) -> Int {
        guard let perSecond else { return .max }
        allowance = min(allowance + (now - time) / .seconds(1) * perSecond, max(1, perSecond))
        time = now
        return Int(allowance)
    }

    mutating func used(_ count: Int) {
        if perSecond != nil { allowance -= Double(count) }
    }

    /// The time until a further request may be made.
    var pause: Duration {
        guard let perSecond, allowance < 1 else { return .zero }
        return .seconds((1 - allowance) / perSecond)
    }
}
