import Synchronization

/// All metrics of the process, registered at the start and rendered at each scrape.
package final class MetricsRegistry: Sendable {
    struct Family: Sendable {
        let name: String
        let help: String
        let type: PrometheusText.MetricType
        let labels: [LabelSet]
        let samples: @Sendable () -> [Sample]
    }

    /// In the order of their export.
    var families: [Family] { registered.withLock { $0 } }

    private let registered = Mutex<[Family]>([])

    package init() {}

    package func counter(_ name: String, _ help: String) -> Counter {
        counters(name, help).counter()
    }

    package func counters(_ name: String, _ help: String, _ labels: LabelSet...) -> CounterFamily {
        let family = CounterFamily(labels) { Counter() }
        add(name, help, .counter, labels) { family.samples }
        return family
    }

    /// - Parameter value: a gauge that starts as not-a-number is exported once it is set.
    package func gauge(_ name: String, _ help: String, initially value: Double = 0) -> Gauge {
        gauges(name, help, initially: value).gauge()
    }

    package func gauges(_ name: String, _ help: String, initially value: Double = 0, _ labels: LabelSet...)
        -> GaugeFamily
    {
        let family = GaugeFamily(labels) { Gauge(value) }
        add(name, help, .gauge, labels) { family.samples }
        return family
    }

    /// Registers gauges by the values of a label to which values can be added.
    package func growingGauges(_ name: String, _ help: String, _ labels: LabelSet) -> GrowingGaugeFamily {
        let family = GrowingGaugeFamily(labels)
        add(name, help, .gauge, [labels]) { family.samples }
        return family
    }

    /// As ``growingGauges(_:_:_:)``, with further labels of closed sets.
    package func growingFamily(_ name: String, _ help: String, by label: String, _ labels: LabelSet...)
        -> GrowingFamily<Gauge>
    {
        let family = GrowingFamily(label) { MetricFamily(labels) { Gauge(.nan) } }
        add(name, help, .gauge, [LabelSet(label, [])] + labels) { family.samples(\.samples) }
        return family
    }

    package func growingCounters(_ name: String, _ help: String, by label: String, _ labels: LabelSet...)
        -> GrowingFamily<Counter>
    {
        let family = GrowingFamily(label) { MetricFamily(labels) { Counter() } }
        add(name, help, .counter, [LabelSet(label, [])] + labels) { family.samples(\.samples) }
        return family
    }

    /// Registers a gauge that is computed at each scrape; not-a-number is not exported.
    package func computed(_ name: String, _ help: String, _ value: @escaping @Sendable () -> Double) {
        add(name, help, .gauge) {
            let value = value()
            return value.isNaN ? [] : [Sample(value: value)]
        }
    }

    /// Registers a gauge that is always 1 and only carries labels.
    package func constant(_ name: String, _ help: String, _ labels: (name: String, value: String)...) {
        let sets = labels.map { LabelSet($0.name, [$0.value]) }
        add(name, help, .gauge, sets) { [Sample(labels: labels, value: 1)] }
    }

    package func histogram(_ name: String, _ help: String, unit: Histogram.Unit, bounds: [Double]) -> Histogram {
        let histogram = Histogram(unit: unit, bounds: bounds)
        add(name, help, .histogram) { histogram.samples }
        return histogram
    }

    package func histograms(
        _ name: String,
        _ help: String,
        unit: Histogram.Unit,
        bounds: [Double],
        _ labels: LabelSet
    ) -> MetricFamily<Histogram> {
        let family = MetricFamily([labels]) { Histogram(unit: unit, bounds: bounds) }
        add(name, help, .histogram, [labels]) { family.samples }
        return family
    }

    /// Renders a scrape in the Prometheus exposition format 0.0.4, with `process_*` of this process at the end.
    package func prometheusText() -> String {
        var text = PrometheusText()
        for family in families {
            text.append(family.name, family.help, family.type, family.samples())
        }
        ProcessMetrics.append(to: &text)
        return text.text
    }

    private func add(
        _ name: String,
        _ help: String,
        _ type: PrometheusText.MetricType,
        _ labels: [LabelSet] = [],
        _ samples: @escaping @Sendable () -> [Sample]
    ) {
        registered.withLock { families in
            precondition(!families.contains { $0.name == name }, "\(name) is registered twice")
            families.append(Family(name: name, help: help, type: type, labels: labels, samples: samples))
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

    mutating func append(_ name: String, _ help: String, _ type: MetricType, _ samples: [Sample]) {
        text += "# HELP \(name) \(Self.escaped(help, quote: false))\n# TYPE \(name) \(type.rawValue)\n"
        for sample in samples {
            text += name + sample.suffix
            if !sample.labels.isEmpty {
                let pairs = sample.labels.map { "\($0.name)=\"\(Self.escaped($0.value, quote: true))\"" }
                text += "{\(pairs.joined(separator: ","))}"
            }
            text += " \(Self.number(sample.value))\n"
        }
    }

    static func number(_ value: Double) -> String {
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
