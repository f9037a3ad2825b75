import Synchronization

/// Gauges of one name, one for each value of one label. The values are those that an operator configured: they become more
/// when the configuration is read anew, and never by what comes in.
package final class GrowingGaugeFamily: Sendable {
    private struct State {
        var values: [String] = []
        var gauges: [String: Gauge] = [:]
    }

    private let label: String
    private let state = Mutex(State())
    /// For values that nobody configured; not exported.
    private let other = Gauge(.nan)

    init(_ labels: LabelSet) {
        label = labels.name
        admit(labels.values)
    }

    /// Exports these values too, each as soon as it is set.
    package func admit(_ values: [String]) {
        state.withLock { state in
            for value in values where state.gauges[value] == nil {
                state.values.append(value)
                state.gauges[value] = Gauge(.nan)
            }
        }
    }

    /// The gauge for a value.
    package func gauge(_ value: String) -> Gauge {
        state.withLock { $0.gauges[value] } ?? other
    }

    /// What is exported: every value that is known.
    var samples: [(labels: [(name: String, value: String)], value: Double)] {
        state.withLock { state in
            state.values.compactMap { value in
                guard let known = state.gauges[value]?.value, !known.isNaN else { return nil }
                return ([(label, value)], known)
            }
        }
    }
}
