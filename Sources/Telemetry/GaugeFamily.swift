/// Gauges of one name, one for each combination of label values.
package struct GaugeFamily: Sendable {
    private let index: LabelIndex
    private let gauges: [Gauge]

    init(_ labels: [LabelSet], initially value: Double) {
        index = LabelIndex(labels)
        gauges = (0..<index.count).map { _ in Gauge(value) }
    }

    /// The gauge for these values, one for each label in their order.
    package func gauge(_ values: String...) -> Gauge {
        gauges[index.position(values)]
    }

    /// What is exported: every member of the closed sets whose value is known.
    var samples: [(labels: [(name: String, value: String)], value: Double)] {
        gauges.indices.compactMap { position in
            let (labels, isListed) = index.labels(at: position)
            let value = gauges[position].value
            return isListed && !value.isNaN ? (labels, value) : nil
        }
    }
}
