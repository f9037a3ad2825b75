/// Why an attempt to deliver a change failed.
package enum DeliveryReason: String, Sendable, CaseIterable {
    /// A 3xx, which is not followed.
    case redirected
    /// A 4xx.
    case refused
    /// A 5xx.
    case failed
    /// No whole answer in time.
    case timedOut = "timed-out"
    /// The host is unknown, the connection was refused or broke.
    case unreachable
    case tls
    /// The address is not one that siwad may connect to.
    case blocked
    /// The answer is not HTTP.
    case malformedAnswer = "malformed-answer"
    /// The receiver asked for no further attempt of this change.
    case aborted
    /// The receiver asked for nothing more.
    case gone
    /// The receiver asked for a pause.
    case throttled
}
