/// The metrics of what a daemon does for the database from time to time.
package struct MaintenanceMetrics: Sendable {
    /// `task`
    package static let tasks = ["partitions", "retention", "sessions", "erasure"]

    /// `result`: `elsewhere` when another daemon was at it.
    package static let results = ["done", "failed", "elsewhere"]

    /// `item`
    package static let items = [
        "partitions-created", "partitions-dropped", "dead-letters-deleted", "sessions-deleted", "accounts-erased",
        "tokens-erased", "dead-letters-erased",
    ]

    /// By task and result: attempts to bring a task to its end.
    package let runs: CounterFamily
    /// By item: what this process created, dropped, deleted or erased.
    package let effects: CounterFamily
    /// By task: when some daemon last brought it to its end, in seconds since 1970.
    package let finishedAt: GaugeFamily

    /// Registers them.
    package init(registry: MetricsRegistry) {
        runs = registry.counters(
            "siwad_maintenance_runs_total",
            "Attempts to bring a task of maintenance to its end.",
            LabelSet("task", Self.tasks),
            LabelSet("result", Self.results)
        )
        effects = registry.counters(
            "siwad_maintenance_items_total",
            "What maintenance created, dropped, deleted or erased.",
            LabelSet("item", Self.items)
        )
        finishedAt = registry.gauges(
            "siwad_maintenance_last_success_timestamp_seconds",
            "When a daemon last brought a task of maintenance to its end.",
            initially: .nan,
            LabelSet("task", Self.tasks)
        )
    }
}
