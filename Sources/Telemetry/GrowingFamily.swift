import Synchronization

/// Metrics of one name by a label whose values are configured while the process runs, and by labels with closed sets. Only
/// ``keep(_:)`` adds values, so no input can create a time series.
package final class GrowingFamily<Metric: Sendable>: Sendable {
    private let label: String
    private let make: @Sendable () -> MetricFamily<Metric>
    private let members = Mutex<[(value: String, family: MetricFamily<Metric>)]>([])
    /// For values that are not configured; not exported.
    private let other: MetricFamily<Metric>

    init(_ label: String, _ make: @escaping @Sendable () -> MetricFamily<Metric>) {
        self.label = label
        self.make = make
        other = make()
    }

    /// The configured values, in their order. The metrics of others are forgotten.
    package func keep(_ values: [String]) {
        members.withLock { members in
            members = values.map { value in
                (value, members.first { $0.value == value }?.family ?? make())
            }
        }
    }

    package subscript(value: String) -> MetricFamily<Metric> {
        members.withLock { $0.first { $0.value == value }?.family } ?? other
    }

    func samples(_ read: (MetricFamily<Metric>) -> [Sample]) -> [Sample] {
        members.withLock { $0 }.flatMap { value, family in
            read(family).map { Sample(suffix: $0.suffix, labels: [(label, value)] + $0.labels, value: $0.value) }
        }
    }
}
