/// The metrics of sign-ins.
package struct SignInMetrics: Sendable {
    /// `signed-in`, `repeated`, or the reason of a refusal.
    package static let outcomes = [
        "signed-in", "repeated", "malformed-request", "unknown-client", "unauthenticated", "client-not-allowed",
        "request-timeout", "body-too-large", "unsupported-media-type", "malformed-token", "unsupported-algorithm",
        "not-an-identity-token", "bad-signature", "unknown-key", "wrong-issuer", "wrong-audience", "code-mismatch",
        "nonce-mismatch", "nonce-missing", "nonce-used", "token-used", "expired", "token-too-old",
        "not-yet-valid", "nonce-expired", "code-rejected", "consent-revoked", "account-deleted", "session-taken",
        "in-progress", "apple-refused-client", "apple-unexpected", "keys-unavailable", "apple-unavailable",
        "database-unavailable", "overloaded", "draining",
    ]
    package static let results = [
        "issued", "grant-refused", "request-refused", "client-refused", "unreachable", "timed-out", "broken",
        "throttled",
        "server-error", "not-understood",
    ]
    package static let states = ["valid", "refused", "unreadable"]

    package let signIns: CounterFamily
    package let duration: Histogram
    package let requests: CounterFamily
    package let requestDuration: MetricFamily<Histogram>
    /// Of all daemons; unknown until the first count.
    package let tokens: GaugeFamily
    /// In seconds since 1970; unknown without TLS.
    package let certificateExpiry: Gauge

    package init(registry: MetricsRegistry) {
        let endpoint = LabelSet("endpoint", ["token"])
        signIns = registry.counters(
            "siwad_sign_ins_total",
            "Requests to sign in by outcome.",
            LabelSet("outcome", Self.outcomes)
        )
        duration = registry.histogram(
            "siwad_sign_in_duration_seconds",
            "From a request to sign in to its answer.",
            unit: .seconds,
            bounds: Self.bounds
        )
        requests = registry.counters(
            "siwad_apple_requests_total",
            "Requests to Apple by the result.",
            endpoint,
            LabelSet("result", Self.results)
        )
        requestDuration = registry.histograms(
            "siwad_apple_request_duration_seconds",
            "From a request to Apple to the end of the answer, with a second attempt.",
            unit: .seconds,
            bounds: Self.bounds,
            endpoint
        )
        tokens = registry.gauges(
            "siwad_apple_tokens",
            "Refresh tokens in the database.",
            initially: .nan,
            LabelSet("state", Self.states)
        )
        certificateExpiry = registry.gauge(
            "siwad_application_tls_certificate_expiry_timestamp_seconds",
            "When the application endpoint's certificate expires.",
            initially: .nan
        )
    }

    private static let bounds: [Double] = [
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 10,
    ]
}
