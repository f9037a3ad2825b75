/// The metrics of deliveries. Their label `endpoint` has the names of the configured endpoints.
package struct DeliveryMetrics: Sendable {
    package static let states = ["enabled", "open", "paused", "disabled"]
    package static let statuses = ["pending", "retry", "dead"]

    package let attempts: GrowingFamily<Counter>
    /// Of a request.
    package let duration: Histogram
    /// From the recording of a change to its delivery.
    package let delay: Histogram
    package let lag: GrowingFamily<Gauge>
    package let age: GrowingFamily<Gauge>
    package let state: GrowingFamily<Gauge>
    package let deliveries: GrowingFamily<Gauge>

    package init(registry: MetricsRegistry) {
        let outcomes = [
            "delivered", "redirected", "refused", "failed", "timed-out", "unreachable", "tls", "blocked",
            "malformed-answer", "aborted", "gone", "throttled",
        ]
        attempts = registry.growingCounters(
            "siwad_delivery_attempts_total",
            "Requests to endpoints of applications by outcome.",
            by: "endpoint",
            LabelSet("outcome", outcomes)
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
            "1 for the state of an endpoint. open: it fails, and only probes are sent; or this daemon can't open its secret, and sends nothing.",
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
}
