/// A label and the only values that it may have.
package struct LabelSet: Sendable {
    /// The label's name.
    package let name: String
    /// Its values, in the order in which they are exported.
    package let values: [String]

    /// A label with its closed set of values.
    package init(_ name: String, _ values: [String]) {
        self.name = name
        self.values = values
    }

    /// What a value outside of the set is counted as, so that no input can make a time series.
    static let other = "other"
}

/// The members of a family in a fixed order, found by their label values.
struct LabelIndex: Sendable {
    private let sets: [LabelSet]
    private let positions: [[String: Int]]

    /// How many members the family has, those for values outside of the sets included.
    let count: Int

    init(_ sets: [LabelSet]) {
        self.sets = sets
        self.positions = sets.map { set in
            Dictionary(set.values.enumerated().map { ($1, $0) }, uniquingKeysWith: { first, _ in first })
        }
        self.count = sets.reduce(1) { $0 * ($1.values.count + 1) }
    }

    /// Where the member for these values is, one value for each label in their order.
    func position(_ values: [String]) -> Int {
        precondition(values.count == sets.count, "one value for each label")
        var position = 0
        for (index, value) in values.enumerated() {
            let size = sets[index].values.count
            position = position * (size + 1) + (positions[index][value] ?? size)
        }
        return position
    }

    /// The labels of the member at `position`, and whether each of its values is one of its set.
    func labels(at position: Int) -> (labels: [(name: String, value: String)], isListed: Bool) {
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
