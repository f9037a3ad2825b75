import Synchronization

/// A label and its closed set of values, in the order of their export.
package struct LabelSet: Sendable {
    package let name: String
    package let values: [String]

    package init(_ name: String, _ values: [String]) {
        self.name = name
        self.values = values
    }

    /// Counts all values outside the set, so that no input can create a time series.
    static let other = "other"
}

/// One line of a scrape.
struct Sample {
    /// What follows the name of the metric.
    var suffix = ""
    var labels: [(name: String, value: String)] = []
    let value: Double
}

package typealias CounterFamily = MetricFamily<Counter>
package typealias GaugeFamily = MetricFamily<Gauge>

/// Metrics of one name, one for each combination of label values.
package struct MetricFamily<Metric: Sendable>: Sendable {
    private let sets: [LabelSet]
    private let metrics: [Metric]

    init(_ sets: [LabelSet], _ make: () -> Metric) {
        self.sets = sets
        // Each set has one more member, for values outside the set.
        self.metrics = (0..<sets.reduce(1) { $0 * ($1.values.count + 1) }).map { _ in make() }
    }

    /// Takes one value for each label, in their order.
    fileprivate func metric(_ values: [String]) -> Metric {
        precondition(values.count == sets.count, "one value for each label")
        var position = 0
        for (index, value) in values.enumerated() {
            let known = sets[index].values
            position = position * (known.count + 1) + (known.firstIndex(of: value) ?? known.count)
        }
        return metrics[position]
    }

    /// Returns the samples of the members whose value is not nil. `isListed` is true if each label value is in its set.
    fileprivate func collect(_ value: (_ metric: Metric, _ isListed: Bool) -> Double?) -> [Sample] {
        metrics.indices.compactMap { position in
            let (labels, isListed) = self.labels(at: position)
            return value(metrics[position], isListed).map { Sample(labels: labels, value: $0) }
        }
    }

    private func labels(at position: Int) -> (labels: [(name: String, value: String)], isListed: Bool) {
        var rest = position
        var isListed = true
        var labels: [(name: String, value: String)] = []
        for set in sets.reversed() {
            let size = set.values.count
            let index = rest % (size + 1)
            rest /= size + 1
            isListed = isListed && index < size
            labels.append((set.name, index < size ? set.values[index] : LabelSet.other))
        }
        return (labels.reversed(), isListed)
    }
}

extension MetricFamily<Histogram> {
    /// Takes one value for each label, in their order.
    package func histogram(_ values: String...) -> Histogram {
        metric(values)
    }

    /// The samples of all members of the closed sets.
    var samples: [Sample] {
        metrics.indices.flatMap { position -> [Sample] in
            let (labels, isListed) = self.labels(at: position)
            guard isListed else { return [] }
            return metrics[position].samples.map {
                Sample(suffix: $0.suffix, labels: labels + $0.labels, value: $0.value)
            }
        }
    }
}

extension MetricFamily<Counter> {
    /// Takes one value for each label, in their order. Keep the result where counting is frequent: the search costs more
    /// than the count.
    package func counter(_ values: String...) -> Counter {
        metric(values)
    }

    package func increment(_ values: String..., by amount: Int = 1) {
        metric(values).increment(by: amount)
    }

    /// The members that are not zero, by their label values with spaces in between.
    package var counts: [(labels: String, count: Int)] {
        collect { counter, _ in counter.value == 0 ? nil : Double(counter.value) }.map { sample in
            (sample.labels.map(\.value).joined(separator: " "), Int(sample.value))
        }
    }

    /// All members of the closed sets, and the other members that are not zero.
    var samples: [Sample] {
        collect { counter, isListed in isListed || counter.value != 0 ? Double(counter.value) : nil }
    }
}

extension MetricFamily<Gauge> {
    /// Takes one value for each label, in their order.
    package func gauge(_ values: String...) -> Gauge {
        metric(values)
    }

    /// All members of the closed sets with a known value.
    var samples: [Sample] {
        collect { gauge, isListed in isListed && !gauge.value.isNaN ? gauge.value : nil }
    }
}

/// Gauges of one name, one for each value of one label. The values come from the configuration and change only when it is
/// reloaded.
package final class GrowingGaugeFamily: Sendable {
    private let label: String
    private let gauges = Mutex<[(value: String, gauge: Gauge)]>([])
    /// For values that are not configured; not exported.
    private let other = Gauge(.nan)

    init(_ labels: LabelSet) {
        label = labels.name
        keep(labels.values)
    }

    /// Drops the gauges of all other values. A new one is exported once it is set.
    package func keep(_ values: [String]) {
        gauges.withLock { gauges in
            gauges = values.map { value in gauges.first { $0.value == value } ?? (value, Gauge(.nan)) }
        }
    }

    package func gauge(_ value: String) -> Gauge {
        gauges.withLock { $0.first { $0.value == value }?.gauge } ?? other
    }

    var samples: [Sample] {
        gauges.withLock { $0.map { Sample(labels: [(label, $0.value)], value: $0.gauge.value) } }
            .filter { !$0.value.isNaN }
    }
}
