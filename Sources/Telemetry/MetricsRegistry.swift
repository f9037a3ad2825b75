import Synchronization

/// All metrics of the process, registered at the start and rendered at each scrape.
package final class MetricsRegistry: Sendable {
    private struct Family: Sendable {
        let name: String
        let help: String
        let type: PrometheusText.MetricType
        let append: @Sendable (String, inout PrometheusText) -> Void
    }

    private let families = Mutex<[Family]>([])

    package init() {}

    package func counter(_ name: String, _ help: String) -> Counter {
        let counter = Counter()
        add(name, help, .counter) { [([], Double(counter.value))] }
        return counter
    }

    package func counters(_ name: String, _ help: String, _ labels: LabelSet...) -> CounterFamily {
        let family = CounterFamily(labels) { Counter() }
        add(name, help, .counter) { family.samples }
        return family
    }

    /// - Parameter value: a gauge that starts as not-a-number is exported once it is set.
    package func gauge(_ name: String, _ help: String, initially value: Double = 0) -> Gauge {
        let gauge = Gauge(value)
        computed(name, help) { gauge.value }
        return gauge
    }

    /// - Parameter value: gauges that start as not-a-number are exported once they are set.
    package func gauges(_ name: String, _ help: String, initially value: Double = 0, _ labels: LabelSet...)
        -> GaugeFamily
    {
        let family = GaugeFamily(labels) { Gauge(value) }
        add(name, help, .gauge) { family.samples }
        return family
    }

    /// Registers gauges by the values of a label to which values can be added.
    package func growingGauges(_ name: String, _ help: String, _ labels: LabelSet) -> GrowingGaugeFamily {
        let family = GrowingGaugeFamily(labels)
        add(name, help, .gauge) { family.samples }
        return family
    }

    /// Registers a gauge that is computed at each scrape; not-a-number is not exported.
    package func computed(_ name: String, _ help: String, _ value: @escaping @Sendable () -> Double) {
        add(name, help, .gauge) {
            let value = value()
            return value.isNaN ? [] : [([], value)]
        }
    }

    /// Registers a gauge that is always 1 and only carries labels.
    package func constant(_ name: String, _ help: String, _ labels: (name: String, value: String)...) {
        add(name, help, .gauge) { [(labels, 1)] }
    }

    /// - Parameter bounds: the upper bounds in the exported unit.
    package func histogram(_ name: String, _ help: String, unit: Histogram.Unit, bounds: [Double]) -> Histogram {
        let histogram = Histogram(unit: unit, bounds: bounds)
        add(Family(name: name, help: help, type: .histogram) { $1.histogram($0, histogram) })
        return histogram
    }

    /// Renders a scrape in the Prometheus exposition format 0.0.4, with `process_*` of this process at the end.
    package func prometheusText() -> String {
        var text = PrometheusText()
        for family in families.withLock({ $0 }) {
            text.begin(family.name, family.help, family.type)
            family.append(family.name, &text)
        }
        ProcessMetrics.append(to: &text)
        return text.text
    }

    private func add(
        _ name: String,
        _ help: String,
        _ type: PrometheusText.MetricType,
        _ samples: @escaping @Sendable () -> [Sample]
    ) {
        add(
            Family(name: name, help: help, type: type) { name, text in
                for sample in samples() {
                    text.sample(name, sample.labels, sample.value)
                }
            }
        )
    }

    private func add(_ family: Family) {
        families.withLock { families in
            precondition(!families.contains { $0.name == family.name }, "\(family.name) is registered twice")
            families.append(family)
        }
    }
}

/// Prometheus' text exposition format 0.0.4.
struct PrometheusText {
    enum MetricType: String, Sendable {
        case counter
        case gauge
        case histogram
    }

    private(set) var text = ""

    mutating func begin(_ name: String, _ help: String, _ type: MetricType) {
        text += "# HELP \(name) \(Self.escaped(help, quote: false))\n# TYPE \(name) \(type.rawValue)\n"
    }

    mutating func sample(_ name: String, _ labels: [(name: String, value: String)], _ value: Double) {
        text += name
        if !labels.isEmpty {
            let pairs = labels.map { "\($0.name)=\"\(Self.escaped($0.value, quote: true))\"" }
            text += "{\(pairs.joined(separator: ","))}"
        }
        text += " \(Self.number(value))\n"
    }

    mutating func histogram(_ name: String, _ histogram: Histogram) {
        let (cumulative, sum) = histogram.snapshot
        for (bound, count) in zip(histogram.bounds + [.infinity], cumulative) {
            sample("\(name)_bucket", [("le", Self.number(bound))], Double(count))
        }
        sample("\(name)_sum", [], sum)
        sample("\(name)_count", [], Double(cumulative.last ?? 0))
    }

    private static func number(_ value: Double) -> String {
        value == .infinity ? "+Inf" : Int64(exactly: value).map(String.init) ?? "\(value)"
    }

    private static func escaped(_ text: String, quote: Bool) -> String {
        var escaped = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\\": escaped += "\\\\"
            case "\n": escaped += "\\n"
            case "\"" where quote: escaped += "\\\""
            default: escaped.unicodeScalars.append(scalar)
            }
        }
        return escaped
    }
}
