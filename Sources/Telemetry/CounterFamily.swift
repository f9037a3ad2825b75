/// Counters of one name, one for each combination of label values.
package struct CounterFamily: Sendable {
    private let index: LabelIndex
    private let counters: [Counter]

    init(_ labels: [LabelSet]) {
        index = LabelIndex(labels)
        counters = (0..<index.count).map { _ in Counter() }
    }

    /// The counter for these values, one for each label in their order. Keep it where counting is frequent: the search
    /// costs more than the count.
    package func counter(_ values: String...) -> Counter {
        counters[index.position(values)]
    }

    /// Counts `amount` more for these values.
    package func increment(_ values: String..., by amount: Int = 1) {
        counters[index.position(values)].increment(by: amount)
    }

    /// What is exported: every member of the closed sets, the others only once they counted something.
    var samples: [(labels: [(name: String, value: String)], value: Double)] {
        counters.indices.compactMap { position in
            let (labels, isListed) = index.labels(at: position)
            let value = counters[position].value
            return isListed || value != 0 ? (labels, Double(value)) : nil
        }
    }
}
