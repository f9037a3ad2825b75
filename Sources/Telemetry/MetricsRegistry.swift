import Synchronization

/// Every metric of the process, made once at the start and rendered at each scrape.
package final class MetricsRegistry: Sendable {
    private struct Family: Sendable {
        let name: String
        let help: String
        let type: PrometheusText.MetricType
        let append: @Sendable (String, inout PrometheusText) -> Void
    }

    private let families = Mutex<[Family]>([])

    /// A registry without metrics.
    package init() {}

    /// A counter without labels.
    package func counter(_ name: String, _ help: String) -> Counter {
        let counter = Counter()
        add(name, help, .counter) { $1.sample($0, [], Double(counter.value)) }
        return counter
    }

    /// Counters by label values.
    package func counters(_ name: String, _ help: String, _ labels: LabelSet...) -> CounterFamily {
        let family = CounterFamily(labels)
        add(name, help, .counter) { name, text in
            for sample in family.samples {
                text.sample(name, sample.labels, sample.value)
            }
        }
        return family
    }

    /// A gauge without labels. One that starts as not a number is exported once it is set.
    package func gauge(_ name: String, _ help: String, initially value: Double = 0) -> Gauge {
        let gauge = Gauge(value)
        computed(name, help) { gauge.value }
        return gauge
    }

    /// Gauges by label values. Those that start as not a number are exported once they are set.
    package func gauges(_ name: String, _ help: String, initially value: Double = 0, _ labels: LabelSet...)
        -> GaugeFamily
    {
        let family = GaugeFamily(labels, initially: value)
        add(name, help, .gauge) { name, text in
            for sample in family.samples {
                text.sample(name, sample.labels, sample.value)
            }
        }
        return family
    }

    /// Gauges by the values of a label that may become more; each is exported once it is set.
    package func growingGauges(_ name: String, _ help: String, _ labels: LabelSet) -> GrowingGaugeFamily {
        let family = GrowingGaugeFamily(labels)
        add(name, help, .gauge) { name, text in
            for sample in family.samples {
                text.sample(name, sample.labels, sample.value)
            }
        }
        return family
    }

    /// A gauge whose value is computed at each scrape; not a number exports nothing.
    package func computed(_ name: String, _ help: String, _ value: @escaping @Sendable () -> Double) {
        add(name, help, .gauge) { name, text in
            let value = value()
            if !value.isNaN {
                text.sample(name, [], value)
            }
        }
    }

    /// A gauge that is always 1 and only carries labels.
    package func constant(_ name: String, _ help: String, _ labels: (name: String, value: String)...) {
        add(name, help, .gauge) { $1.sample($0, labels, 1) }
    }

    /// A histogram with these upper bounds in the exported unit.
    package func histogram(_ name: String, _ help: String, unit: Histogram.Unit, bounds: [Double]) -> Histogram {
        let histogram = Histogram(unit: unit, bounds: bounds)
        add(name, help, .histogram) { $1.histogram($0, histogram) }
        return histogram
    }

    /// The text of a scrape: Prometheus exposition format 0.0.4, with `process_*` of this process at the end.
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
        _ append: @escaping @Sendable (String, inout PrometheusText) -> Void
    ) {
        families.withLock { families in
            precondition(!families.contains { $0.name == name }, "\(name) is registered twice")
            families.append(Family(name: name, help: help, type: type, append: append))
        }
    }
}
