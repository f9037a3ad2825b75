import AccountStore
import Telemetry

extension DeliveryMetrics {
    /// All endpoints, after ``keep(_:)`` with their names.
    func show(_ endpoints: [(endpoint: Endpoint, isOpen: Bool)]) {
        for (endpoint, isOpen) in endpoints {
            let current = endpoint.status == .enabled && isOpen ? "open" : endpoint.status.rawValue
            for name in Self.states { state[endpoint.name].gauge(name).set(name == current ? 1 : 0) }
        }
    }

    /// The names of the endpoints, in their order. The metrics of others are no longer exported.
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
