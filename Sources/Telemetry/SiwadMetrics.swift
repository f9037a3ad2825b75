import Basics

/// The metrics that siwad promises to dashboards. The part that observes an event counts it.
package struct SiwadMetrics: Sendable {
    package let registry = MetricsRegistry()
    /// Counted once the outcome is durable.
    package let notifications: CounterFamily
    /// Counted by the HTTP endpoint, like ``unavailable``.
    package let rejections: CounterFamily
    package let unavailable: CounterFamily
    /// Of the database; unknown until the first count.
    package let deadLetters: GaugeFamily
    package let requestDuration: Histogram
    package let commitDuration: Histogram
    package let batchSize: Histogram
    /// From `event_time` to the commit.
    package let eventLag: Histogram
    package let queueDepth: FollowedGauge
    package let spoolBytes: FollowedGauge
    package let spooled: Counter
    package let spoolFilesSetAside: CounterFamily
    package let spoolFilesUntrusted: Gauge
    package let spoolWritable: Gauge
    package let spoolLimit: Gauge
    package let spoolUnverified: Counter
    /// In seconds since 1970; exported as an age.
    package let keysFetchedAt: Gauge
    package let keyFetches: CounterFamily
    /// In seconds since 1970 by app. Apps that a reload configures must be admitted.
    package let lastNotification: GrowingGaugeFamily
    /// Only sessions that ended with notifications. Applications and operators end sessions by SQL statements that this
    /// process does not see.
    package let sessionsEnded: CounterFamily
    package let databaseUp: Gauge
    package let connections: Gauge
    package let evictedConnections: Counter
    /// In seconds since 1970.
    package let certificateExpiry: Gauge

    /// - Parameter appIDs: the primary App IDs of the configuration.
    package init(version: String, appIDs: [String]) {
        notifications = registry.counters(
            "siwad_notifications_total",
            "Verified notifications by event type and outcome.",
            LabelSet("event_type", ["email-disabled", "email-enabled", "consent-revoked", "account-deleted"]),
            LabelSet("outcome", ["applied", "superseded", "unchanged", "duplicate"])
        )
        let refusals = [
            "malformed-body", "malformed-token", "unsupported-algorithm", "not-a-notification",
            "app-store-notification", "bad-signature", "unknown-key", "wrong-issuer", "body-too-large",
            "malformed-request", "headers-too-large", "unsupported-encoding", "unsupported-expectation",
            "unsupported-version", "request-timeout",
        ]
        rejections = registry.counters(
            "siwad_rejections_total",
            "Requests that were refused without storing anything.",
            LabelSet("reason", refusals)
        )
        let causes = [
            "keys-unavailable", "database-unavailable", "queue-full", "dead-letter-limit", "shutting-down",
            "answer-timeout",
        ]
        unavailable = registry.counters(
            "siwad_unavailable_total",
            "Requests that should be sent again later (503).",
            LabelSet("reason", causes)
        )
        let reasons = [
            "unknown-audience", "unknown-event-type", "malformed-claims", "expired", "not-yet-valid",
            "store-rejected", "keys-unavailable",
        ]
        deadLetters = registry.gauges(
            "siwad_dead_letters",
            "Open dead letters.",
            initially: .nan,
            LabelSet("reason", reasons)
        )
        requestDuration = registry.histogram(
            "siwad_request_duration_seconds",
            "From the head of a request to its response.",
            unit: .seconds,
            bounds: Self.durationBounds
        )
        commitDuration = registry.histogram(
            "siwad_commit_duration_seconds",
            "From the first statement of a batch to the return of its commit.",
            unit: .seconds,
            bounds: Self.durationBounds
        )
        batchSize = registry.histogram(
            "siwad_batch_size",
            "Notifications in one transaction.",
            unit: .items,
            bounds: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
        )
        let depth = FollowedGauge()
        queueDepth = depth
        registry.computed("siwad_queue_depth", "Notifications waiting for a transaction.") { Double(depth.value) }
        let bytes = FollowedGauge()
        spoolBytes = bytes
        registry.computed("siwad_spool_bytes", "Size of the spool.") { Double(bytes.value) }
        spooled = registry.counter("siwad_spooled_total", "Requests whose content was written to the spool.")
        spoolFilesSetAside = registry.counters(
            "siwad_spool_files_set_aside_total",
            "Files in the spool directory that were set aside because they are torn, foreign or forged.",
            LabelSet("reason", ["torn", "foreign", "forged"])
        )
        spoolFilesUntrusted = registry.gauge(
            "siwad_spool_untrusted_files",
            "Files in the spool directory that are not read because others could have written them."
        )
        spoolWritable = registry.gauge(
            "siwad_spool_writable",
            "1 while notifications can be written to the spool, otherwise 0.",
            initially: .nan
        )
        spoolLimit = registry.gauge("siwad_spool_limit_bytes", "SIWAD_SPOOL_LIMIT.", initially: .nan)
        spoolUnverified = registry.counter(
            "siwad_spool_unverified_total",
            "Notifications applied from the spool whose signature could not be verified again."
        )
        eventLag = registry.histogram(
            "siwad_event_lag_seconds",
            "From an event at Apple to its commit here.",
            unit: .seconds,
            bounds: [1, 5, 10, 30, 60, 300, 900, 3600, 21_600, 86_400]
        )
        let fetchedAt = Gauge(.nan)
        keysFetchedAt = fetchedAt
        registry.computed("siwad_keys_age_seconds", "Time since Apple's key set was last fetched.") {
            let age = Double(WallTime.now().wholeMilliseconds) / 1000 - fetchedAt.value
            return age < 0 ? 0 : age
        }
        keyFetches = registry.counters(
            "siwad_key_fetches_total",
            "Attempts to fetch Apple's key set.",
            LabelSet("result", ["success", "failure", "rejected"])
        )
        lastNotification = registry.growingGauges(
            "siwad_last_notification_timestamp_seconds",
            "When the last notification of an app became durable.",
            LabelSet("app_id", appIDs)
        )
        sessionsEnded = registry.counters(
            "siwad_sessions_ended_total",
            "Sessions that ended with the notifications stored here.",
            LabelSet("reason", ["consent-revoked", "account-deleted", "signed-out", "operator"])
        )
        databaseUp = registry.gauge("siwad_database_up", "1 while PostgreSQL responds.")
        connections = registry.gauge("siwad_connections", "Open connections of the notification endpoint.")
        evictedConnections = registry.counter(
            "siwad_connections_evicted_total",
            "Connections that were closed to make room for others."
        )
        certificateExpiry = registry.gauge(
            "siwad_tls_certificate_expiry_timestamp_seconds",
            "When the endpoint's certificate expires.",
            initially: .nan
        )
        registry.constant("siwad_build_info", "This build.", ("version", version))
    }

    private static let durationBounds: [Double] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25,
    ]
}

/// The metrics of the daemon's maintenance of the database.
package struct MaintenanceMetrics: Sendable {
    private static let tasks = [
        "partitions", "retention", "sessions", "erasure", "deliveries", "sign-ins", "tokens",
    ]

    /// The result is `elsewhere` if another daemon was running the task.
    package let runs: CounterFamily
    /// What this process created, dropped, deleted or erased.
    package let effects: CounterFamily
    /// When a daemon last completed each task, in seconds since 1970.
    package let finishedAt: GaugeFamily

    package init(registry: MetricsRegistry) {
        runs = registry.counters(
            "siwad_maintenance_runs_total",
            "Attempts to complete a maintenance task.",
            LabelSet("task", Self.tasks),
            LabelSet("result", ["done", "failed", "elsewhere"])
        )
        let items = [
            "partitions-created", "partitions-dropped", "dead-letters-deleted", "sessions-deleted",
            "accounts-erased", "tokens-erased", "dead-letters-erased", "deliveries-deleted",
            "sign-ins-deleted", "codes-erased", "refresh-tokens-deleted", "names-deleted",
        ]
        effects = registry.counters(
            "siwad_maintenance_items_total",
            "What maintenance created, dropped, deleted or erased.",
            LabelSet("item", items)
        )
        finishedAt = registry.gauges(
            "siwad_maintenance_last_success_timestamp_seconds",
            "When a daemon last completed a maintenance task.",
            initially: .nan,
            LabelSet("task", Self.tasks)
        )
    }
}

/// The metrics of the publication of changes.
package struct PublicationMetrics: Sendable {
    package let published: Counter
    /// From the start of the transaction of a change to its publication; of the first change of each round.
    package let delay: Histogram
    /// In seconds; NaN if it could not be measured.
    package let age: Gauge

    package init(registry: MetricsRegistry) {
        published = registry.counter("siwad_changes_published_total", "Changes that this process published.")
        delay = registry.histogram(
            "siwad_publication_delay_seconds",
            "From the recording of a change to its publication.",
            unit: .seconds,
            bounds: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300]
        )
        age = registry.gauge(
            "siwad_publication_age_seconds",
            "How long the oldest committed change has waited for its publication, or at most while PostgreSQL refuses to tell.",
            initially: .nan
        )
    }
}
