import AccountStore
package import Telemetry

/// The metrics of deliveries. Their label `endpoint` has the names of the configured endpoints.
package struct DeliveryMetrics: Sendable {
    /// The counters of one endpoint.
    struct Endpoint: Sendable {
        let attempts: CounterFamily
    }

    private static let states = ["enabled", "open", "paused", "disabled"]
    private static let statuses = ["pending", "retry", "dead"]

    private let attempts: GrowingFamily<Counter>
    private let lag: GrowingFamily<Gauge>
    private let age: GrowingFamily<Gauge>
    private let state: GrowingFamily<Gauge>
    private let deliveries: GrowingFamily<Gauge>
    /// Of a request.
    let duration: Histogram
    /// From the recording of a change to its delivery.
    let delay: Histogram

    package init(registry: MetricsRegistry) {
        attempts = registry.growingCounters(
            "siwad_delivery_attempts_total",
            "Requests to endpoints of applications by outcome.",
            by: "endpoint",
            LabelSet("outcome", ["delivered"] + DeliveryReason.allCases.map(\.rawValue))
        )
        duration = registry.histogram(
            "siwad_delivery_duration_seconds",
            "From the start of a request to an endpoint to the end of the answer.",
            unit: .seconds,
            bounds: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
        )
        delay = registry.histogram(
            "siwad_effect_delay_seconds",
            "From the recording of a change to its delivery.",
            unit: .seconds,
            bounds: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60, 300, 1_800, 7_200, 86_400]
        )
        lag = registry.growingFamily(
            "siwad_endpoint_lag",
            "Positions of the log after the first change that was not attempted.",
            by: "endpoint"
        )
        age = registry.growingFamily(
            "siwad_endpoint_age_seconds",
            "How long the oldest undelivered change has waited.",
            by: "endpoint"
        )
        state = registry.growingFamily(
            "siwad_endpoint_state",
            "1 for the state of an endpoint. open: it fails, and only probes are sent.",
            by: "endpoint",
            LabelSet("state", Self.states)
        )
        deliveries = registry.growingFamily(
            "siwad_deliveries",
            "Deliveries that have not ended, or were given up.",
            by: "endpoint",
            LabelSet("status", Self.statuses)
        )
    }

    func endpoint(_ name: String) -> Endpoint { Endpoint(attempts: attempts[name]) }

    /// All endpoints. The metrics of others are no longer exported.
    func show(_ endpoints: [(endpoint: AccountStore.Endpoint, isOpen: Bool)]) {
        for (endpoint, isOpen) in endpoints {
            let current = endpoint.status == .enabled && isOpen ? "open" : endpoint.status.rawValue
            for name in Self.states { state[endpoint.name].gauge(name).set(name == current ? 1 : 0) }
        }
    }

    /// The names of the endpoints, in their order.
    func keep(_ names: [String]) {
        attempts.keep(names)
        for family in [lag, age, state, deliveries] { family.keep(names) }
    }

    func show(_ backlog: DeliveryBacklog) {
        lag[backlog.endpoint].gauge().set(Double(backlog.lag))
        age[backlog.endpoint].gauge().set(backlog.age / .seconds(1))
        let counts = [backlog.pending, backlog.retry, backlog.dead]
        for (status, count) in zip(Self.statuses, counts) {
            deliveries[backlog.endpoint].gauge(status).set(Double(count))
        }
    }
}
