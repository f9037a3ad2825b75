import Synchronization

/// A number that goes up and down. Free of locks; safe from any thread.
package final class Gauge: Sendable {
    private let bits: Atomic<UInt64>

    /// A gauge at `value`; not a number means that nothing is known yet, and that nothing is exported.
    package init(_ value: Double = 0) {
        bits = Atomic(value.bitPattern)
    }

    /// The value last set.
    package var value: Double {
        Double(bitPattern: bits.load(ordering: .relaxed))
    }

    /// Replaces the value.
    package func set(_ value: Double) {
        bits.store(value.bitPattern, ordering: .relaxed)
    }

    /// Replaces the value.
    package func set(_ value: Int) {
        set(Double(value))
    }

    /// Replaces a smaller value, or none.
    package func raise(to value: Double) {
        var current = bits.load(ordering: .relaxed)
        while !(Double(bitPattern: current) >= value) {
            let (exchanged, original) = bits.weakCompareExchange(
                expected: current,
                desired: value.bitPattern,
                ordering: .relaxed
            )
            if exchanged { return }
            current = original
        }
    }

    /// Adds to the value, or takes away with a negative amount.
    package func add(_ amount: Double) {
        var current = bits.load(ordering: .relaxed)
        while true {
            let sum = (Double(bitPattern: current) + amount).bitPattern
            let (exchanged, original) = bits.weakCompareExchange(expected: current, desired: sum, ordering: .relaxed)
            if exchanged { return }
            current = original
        }
    }
}
