/// How often values fell below each of a few bounds. Free of locks; safe from any thread.
///
/// A scrape during a record may see the count without the sum: Prometheus tolerates that, a lock per request costs
/// more.
package final class Histogram: Sendable {
    /// What is recorded, and how it is exported.
    package enum Unit: Sendable {
        /// Durations: kept in nanoseconds, exported in seconds.
        case seconds
        /// Counts of something: kept and exported as they are.
        case items
    }

    /// The upper bounds in the exported unit, ascending, without infinity.
    package let bounds: [Double]

    private let unit: Unit
    private let kept: [Int]
    private let buckets: [Counter]
    private let total = Counter()

    /// A histogram with these upper bounds, ascending and finite.
    package init(unit: Unit, bounds: [Double]) {
        let scale = unit == .seconds ? 1e9 : 1
        self.unit = unit
        self.bounds = bounds
        self.kept = bounds.map { Int($0 * scale) }
        self.buckets = (0...bounds.count).map { _ in Counter() }
    }

    /// Records a duration; one below zero counts as zero, one above three years as three years.
    package func record(_ duration: Duration) {
        let (seconds, attoseconds) = duration.components
        guard seconds < Self.largest / 1_000_000_000 else { return record(Self.largest) }
        guard seconds >= 0 else { return record(0) }
        record(Int(seconds) * 1_000_000_000 + Int(attoseconds / 1_000_000_000))
    }

    /// Records a value in the unit that is kept: nanoseconds, or items. One below zero counts as zero.
    package func record(_ value: Int) {
        let value = min(max(0, value), Self.largest)
        var bucket = 0
        while bucket < kept.count, value > kept[bucket] {
            bucket += 1
        }
        buckets[bucket].increment()
        total.increment(by: value)
    }

    /// Small enough that a nonsensical value doesn't overflow the sum.
    private static let largest = 100_000_000_000_000_000

    /// The cumulative counts by bound, the last one for infinity, and the sum in the exported unit.
    var snapshot: (cumulative: [Int], sum: Double) {
        var running = 0
        let cumulative = buckets.map { bucket in
            running += bucket.value
            return running
        }
        return (cumulative, unit == .seconds ? Double(total.value) / 1e9 : Double(total.value))
    }
}
