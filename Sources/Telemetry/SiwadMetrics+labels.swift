extension SiwadMetrics {
    /// `event_type`: one name for both spellings of the deletion.
    package static let eventTypes = ["email-disabled", "email-enabled", "consent-revoked", "account-deleted"]

    /// `outcome` of a notification.
    package static let outcomes = ["applied", "superseded", "unchanged", "duplicate"]

    /// `reason` of a rejection: the rejections of verification, then those of HTTP itself.
    package static let rejectionReasons = [
        "malformed-body", "malformed-token", "unsupported-algorithm", "not-a-notification", "app-store-notification",
        "bad-signature", "unknown-key", "wrong-issuer", "body-too-large", "malformed-request", "headers-too-large",
        "unsupported-encoding", "unsupported-expectation", "unsupported-version", "request-timeout",
    ]

    /// `reason` of a 503.
    package static let unavailabilityReasons = [
        "keys-unavailable", "database-unavailable", "queue-full", "dead-letter-limit", "shutting-down",
        "answer-timeout",
    ]

    /// `reason` of a dead letter.
    package static let deadLetterReasons = [
        "unknown-audience", "unknown-event-type", "malformed-claims", "expired", "not-yet-valid", "store-rejected",
        "keys-unavailable",
    ]

    /// `result` of a fetch: `rejected` when what came back was no key set.
    package static let fetchResults = ["success", "failure", "rejected"]

    /// `reason` why a file in the spool directory was set aside.
    package static let setAsideReasons = ["torn", "foreign", "forged"]

    /// `reason` of a session's end.
    package static let sessionEndReasons = ["consent-revoked", "account-deleted", "signed-out", "operator"]

    static let durationBounds: [Double] = [
        0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25,
    ]
}
