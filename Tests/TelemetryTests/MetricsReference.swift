@testable import Telemetry

/// The page `deploy/doc/metrics.md`.
enum MetricsReference {
    static var page: String {
        // Labels whose values come from the configuration are registered without values.
        let metrics = SiwadMetrics(version: "", appIDs: [])
        _ = MaintenanceMetrics(registry: metrics.registry)
        _ = PublicationMetrics(registry: metrics.registry)
        _ = DeliveryMetrics(registry: metrics.registry)
        _ = SignInMetrics(registry: metrics.registry)
        return (introduction + metrics.registry.families.map(row) + process).joined(separator: "\n")
    }

    private static func row(_ family: MetricsRegistry.Family) -> String {
        let labels = family.labels.map { set in
            let values = set.values.filter { !$0.isEmpty }.map { "`\($0)`" }.joined(separator: ", ")
            return values.isEmpty ? "`\(set.name)`" : "`\(set.name)`: \(values)"
        }
        return "| `\(family.name)` | \(family.type.rawValue) | \(labels.joined(separator: "; ")) | \(family.help) |"
    }

    /// The standard metrics, from their lines in a scrape.
    private static var process: [String] {
        var text = PrometheusText()
        ProcessMetrics.append(to: &text)
        var help: [Substring] = []
        return text.text.split(separator: "\n").compactMap { line in
            let words = line.split(separator: " ", maxSplits: 3)
            if line.hasPrefix("# HELP ") { help = words }
            return line.hasPrefix("# TYPE ") ? "| `\(words[2])` | \(words[3]) |  | \(help[3]) |" : nil
        }
    }

    private static let introduction = [
        """
        # Metrics

        This page is generated: change `Sources/Telemetry`, then run
        `SIWAD_RECORD_METRICS=1 deploy/test --filter MetricsReferenceTests`.

        `/metrics` of the operations endpoint, `SIWAD_OPERATIONS_LISTEN`, has them in Prometheus' text format. This lets
        Prometheus fetch them, and notice by `up` that a daemon does not run:

        ```yaml
        scrape_configs:
          - job_name: siwad
            static_configs:
              - targets: ['127.0.0.1:9090']
        rule_files:
          - /usr/share/siwad/alerts.yaml
          - /usr/share/siwad/recording.yaml
        ```

        [alerts.yaml](../prometheus/alerts.yaml) has the alerts of [operations](operations.md#alerts) as rules, and
        `deploy/check-alerts` tests them. [recording.yaml](../prometheus/recording.yaml) has recording rules for reports over
        months, and [siwad.json](../grafana/siwad.json) is a dashboard for Grafana, which `deploy/check-dashboard` evaluates
        against a running siwad.

        Counters begin at 0 with the process. A gauge whose value is not known yet is left out. Every value of a label is
        listed here and exported from the start, except `app_id`, which has the apps of `SIWAD_APPS`, and `endpoint` of
        deliveries, which has the names of `siwad endpoints list`; a counter gets the value `other` if a value is missing in its list. No token,
        address or person becomes a label. Times are in seconds.

        | metric | type | labels | meaning |
        | --- | --- | --- | --- |
        """
    ]
}
