import Synchronization

/// A number that only grows. Free of locks; safe from any thread.
package final class Counter: Sendable {
    private let count = Atomic<Int>(0)

    /// A counter at zero. Counters that are exported are made by ``MetricsRegistry``.
    package init() {}

    /// The count so far.
    package var value: Int {
        count.load(ordering: .relaxed)
    }

    /// Counts `amount` more.
    package func increment(by amount: Int = 1) {
        count.wrappingAdd(amount, ordering: .relaxed)
    }
}
