import Synchronization

/// A number that only grows. Lock-free; may be used on any thread.
package final class Counter: Sendable {
    private let count = Atomic<Int>(0)

    /// A counter at zero. ``MetricsRegistry`` makes the counters that are exported.
    package init() {}

    package var value: Int {
        count.load(ordering: .relaxed)
    }

    package func increment(by amount: Int = 1) {
        count.wrappingAdd(amount, ordering: .relaxed)
    }
}

/// A number that goes up and down. Lock-free; may be used on any thread.
package final class Gauge: Sendable {
    private let bits: Atomic<UInt64>

    /// - Parameter value: not-a-number means unknown, and is not exported.
    package init(_ value: Double = 0) {
        bits = Atomic(value.bitPattern)
    }

    package var value: Double {
        Double(bitPattern: bits.load(ordering: .relaxed))
    }

    package func set(_ value: Double) {
        bits.store(value.bitPattern, ordering: .relaxed)
    }

    package func set(_ value: Int) {
        set(Double(value))
    }

    /// Replaces the value if it is smaller or unknown.
    package func raise(to value: Double) {
        update { $0 >= value ? $0 : value }
    }

    /// Adds to the value; a negative amount subtracts.
    package func add(_ amount: Double) {
        update { $0 + amount }
    }

    private func update(_ change: (Double) -> Double) {
        var current = bits.load(ordering: .relaxed)
        while true {
            let changed = change(Double(bitPattern: current)).bitPattern
            let (exchanged, original) = bits.weakCompareExchange(
                expected: current,
                desired: changed,
                ordering: .relaxed
            )
            if exchanged { return }
            current = original
        }
    }
}

/// A number that is computed at each scrape, for values without an event for each change.
package final class FollowedGauge: Sendable {
    private let source = Mutex<@Sendable () -> Int>({ 0 })

    /// The current value; 0 without a source.
    package var value: Int {
        source.withLock { $0 }()
    }

    /// Sets the source, which is called on any thread.
    package func follow(_ source: @escaping @Sendable () -> Int) {
        self.source.withLock { $0 = source }
    }
}

/// Counts values by upper bounds. Lock-free; may be used on any thread.
///
/// A scrape during a record may contain the count without the sum. Prometheus tolerates that, and a lock per request costs
/// more.
package final class Histogram: Sendable {
    package enum Unit: Sendable {
        /// Durations, stored in nanoseconds and exported in seconds.
        case seconds
        case items
    }

    private let unit: Unit
    private let bounds: [Double]
    private let storedBounds: [Int]
    private let buckets: [Counter]
    /// The sum of all values is `wholes` times ``whole``, and `total`. In nanoseconds alone it would overflow after 292 years,
    /// which deliveries of old changes reach.
    private let total = Counter()
    private let wholes = Counter()
    private static let whole = 1_000_000_000

    /// - Parameter bounds: the upper bounds in the exported unit, ascending and finite.
    package init(unit: Unit, bounds: [Double]) {
        let scale = unit == .seconds ? 1e9 : 1
        self.unit = unit
        self.bounds = bounds
        self.storedBounds = bounds.map { Int($0 * scale) }
        self.buckets = (0...bounds.count).map { _ in Counter() }
    }

    /// Records a duration, limited to the range from zero to three years.
    package func record(_ duration: Duration) {
        record(Int(min(max(0, duration / .nanoseconds(1)), Double(Self.largest))))
    }

    /// Records a value in the stored unit: nanoseconds or items. A negative value counts as zero.
    package func record(_ value: Int) {
        let value = min(max(0, value), Self.largest)
        var bucket = 0
        while bucket < storedBounds.count, value > storedBounds[bucket] {
            bucket += 1
        }
        buckets[bucket].increment()
        let (wholes, rest) = value.quotientAndRemainder(dividingBy: Self.whole)
        total.increment(by: rest)
        if wholes > 0 { self.wholes.increment(by: wholes) }
    }

    private static let largest = 100_000_000_000_000_000

    /// The cumulative counts by bound, the last one for infinity, and the sum in the exported unit.
    var snapshot: (cumulative: [Int], sum: Double) {
        var running = 0
        let cumulative = buckets.map { bucket in
            running += bucket.value
            return running
        }
        let whole = Double(Self.whole)
        let sum = Double(wholes.value) * whole + Double(total.value)
        return (cumulative, unit == .seconds ? sum / 1e9 : sum)
    }

    var samples: [Sample] {
        let (cumulative, sum) = snapshot
        let buckets = zip(bounds + [.infinity], cumulative).map { bound, count in
            Sample(suffix: "_bucket", labels: [("le", PrometheusText.number(bound))], value: Double(count))
        }
        let count = Double(cumulative.last ?? 0)
        return buckets + [Sample(suffix: "_sum", value: sum), Sample(suffix: "_count", value: count)]
    }
}
