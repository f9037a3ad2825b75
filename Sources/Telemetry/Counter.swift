import Synchronization

/// A number that only grows. Free of locks; safe from any thread.
public final class Counter: Sendable {
    private let count = Atomic<Int>(0)

    /// A counter at zero. Counters that are exported are made by ``MetricsRegistry``.
    public init() {}

    /// The count so far.
    public var value: Int {
        count.load(ordering: .relaxed)
    }

    /// Counts `amount` more.
    public func increment(by amount: Int = 1) {
        count.wrappingAdd(amount, ordering: .relaxed)
    }
}
