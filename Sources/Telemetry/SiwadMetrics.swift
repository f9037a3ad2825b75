import Basics

/// The metrics that siwad promises to dashboards, each where the part that knows it can count.
package struct SiwadMetrics: Sendable {
    /// Where they are registered.
    package let registry: MetricsRegistry

    /// By event type and outcome. Counted once the outcome is durable.
    package let notifications: CounterFamily
    /// By reason: requests that were refused and left nothing behind. Counted by the HTTP endpoint.
    package let rejections: CounterFamily
    /// By reason: requests answered 503. Counted by the HTTP endpoint.
    package let unavailable: CounterFamily
    /// By reason: dead letters that are open.
    package let deadLetters: GaugeFamily
    /// From the head of a request to its answer.
    package let requestDuration: Histogram
    /// From the first statement of a batch to the return of its commit.
    package let commitDuration: Histogram
    /// Notifications in one transaction.
    package let batchSize: Histogram
    /// From `event_time` to the commit.
    package let eventLag: Histogram
    /// Notifications that wait for a transaction.
    package let queueDepth: FollowedGauge
    /// Size of the spool.
    package let spoolBytes: FollowedGauge
    /// Notifications and dead letters that were acknowledged from the spool.
    package let spooled: Counter
    /// By reason: files in the spool directory that were given another name.
    package let spoolFilesSetAside: CounterFamily
    /// Files in the spool directory that are not read because others could have written them.
    package let spoolFilesUntrusted: Gauge
    /// Notifications from the spool that were applied although their key is not known any more.
    package let spoolUnverified: Counter
    /// When Apple's key set was last fetched, in seconds since 1970; exported as its age.
    package let keysFetchedAt: Gauge
    /// By result: attempts to fetch Apple's key set.
    package let keyFetches: CounterFamily
    /// By app: when the last notification was made durable, in seconds since 1970. Apps that are configured later have to
    /// be admitted.
    package let lastNotification: GrowingGaugeFamily
    /// By reason: sessions that ended with the notifications that this process stored. What an application or an
    /// operator ends is a statement in the database that it never sees.
    package let sessionsEnded: CounterFamily
    /// 1 while PostgreSQL answers.
    package let databaseUp: Gauge
    /// Open connections of the notification endpoint.
    package let connections: Gauge
    /// Connections that were closed to make room for others.
    package let evictedConnections: Counter
    /// When the certificate of the notification endpoint expires, in seconds since 1970.
    package let certificateExpiry: Gauge

    /// Registers every metric.
    ///
    /// - Parameters:
    ///   - version: of this build.
    ///   - appIDs: the primary App IDs of the configuration.
    package init(version: String, appIDs: [String], registry: MetricsRegistry = MetricsRegistry()) {
        self.registry = registry
        notifications = registry.counters(
            "siwad_notifications_total",
            "Verified notifications, by event type and what they changed.",
            LabelSet("event_type", Self.eventTypes),
            LabelSet("outcome", Self.outcomes)
        )
        rejections = registry.counters(
            "siwad_rejections_total",
            "Requests that were refused and left nothing behind.",
            LabelSet("reason", Self.rejectionReasons)
        )
        unavailable = registry.counters(
            "siwad_unavailable_total",
            "Requests that were asked to come back later (503).",
            LabelSet("reason", Self.unavailabilityReasons)
        )
        deadLetters = registry.gauges(
            "siwad_dead_letters",
            "Open dead letters.",
            LabelSet("reason", Self.deadLetterReasons)
        )
        requestDuration = registry.histogram(
            "siwad_request_duration_seconds",
            "From the head of a request to its answer.",
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
        registry.computed("siwad_queue_depth", "Notifications that wait for a transaction.") { Double(depth.value) }
        let bytes = FollowedGauge()
        spoolBytes = bytes
        registry.computed("siwad_spool_bytes", "Size of the spool.") { Double(bytes.value) }
        spooled = registry.counter("siwad_spooled_total", "Requests whose content was made durable in the spool.")
        spoolFilesSetAside = registry.counters(
            "siwad_spool_files_set_aside_total",
            "Files in the spool directory that were set aside because they are torn, foreign or forged.",
            LabelSet("reason", Self.setAsideReasons)
        )
        spoolFilesUntrusted = registry.gauge(
            "siwad_spool_untrusted_files",
            "Files in the spool directory that are not read because others could have written them."
        )
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
        registry.computed("siwad_keys_age_seconds", "Since Apple's key set was last fetched.") {
            let age = Double(WallTime.now().wholeMilliseconds) / 1000 - fetchedAt.value
            return age < 0 ? 0 : age
        }
        keyFetches = registry.counters(
            "siwad_key_fetches_total",
            "Attempts to fetch Apple's key set.",
            LabelSet("result", Self.fetchResults)
        )
        lastNotification = registry.growingGauges(
            "siwad_last_notification_timestamp_seconds",
            "When an app's last notification was made durable.",
            LabelSet("app_id", appIDs)
        )
        sessionsEnded = registry.counters(
            "siwad_sessions_ended_total",
            "Sessions that ended with the notifications stored here.",
            LabelSet("reason", Self.sessionEndReasons)
        )
        databaseUp = registry.gauge("siwad_database_up", "1 while PostgreSQL answers.")
        connections = registry.gauge("siwad_connections", "Open connections of the notification endpoint.")
        evictedConnections = registry.counter(
            "siwad_connections_evicted_total",
            "Silent connections that were closed to make room for others."
        )
        certificateExpiry = registry.gauge(
            "siwad_tls_certificate_expiry_timestamp_seconds",
            "When the endpoint's certificate expires.",
            initially: .nan
        )
        registry.constant("siwad_build_info", "This build.", ("version", version))
    }
}
