/// Why something that Apple signed, or may have signed, is kept for an operator instead of being applied.
package enum DeadLetterReason: String, Error, Sendable, Hashable, CaseIterable {
    /// `aud` isn't one of the configured apps.
    case unknownAudience = "unknown-audience"
    /// `type` isn't one that is known.
    case unknownEventType = "unknown-event-type"
    /// Apple signed it, but a claim is missing, of another type than documented or out of range.
    case malformedClaims = "malformed-claims"
    /// It arrived after `exp` and the leeway.
    case expired
    /// `iat` or `event_time` is further in the future than the leeway.
    case notYetValid = "not-yet-valid"
    /// PostgreSQL refused it as data.
    case storeRejected = "store-rejected"
    /// Its key could not be asked for, so whether Apple signed it is open.
    case keysUnavailable = "keys-unavailable"
}
