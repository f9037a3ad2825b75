package import AppleTokens
package import Basics
import Postgres

/// `siwa.dead_letters.status`.
package enum DeadLetterStatus: String, PostgresValue, Sendable, Hashable, CaseIterable {
    case open
    /// Its notification was processed.
    case replayed
    /// An operator decided not to process it.
    case discarded
}

/// Conditions on dead letters. A letter matches if it meets all conditions that are set.
package struct DeadLetterFilter: Sendable, Equatable {
    /// Empty matches every id.
    package var ids: [Int64]
    package var reason: DeadLetterReason?
    /// Received at or after.
    package var since: WallTime?
    /// Received before.
    package var until: WallTime?
    /// `aud` of the token.
    package var app: String?
    /// `type` in Apple's spelling. Either spelling of a deletion matches both.
    package var eventType: String?
    package var subject: String?
    /// The maximum number of letters, in the order of their ids; nil means all. It limits the result of
    /// ``DeadLetters/select(_:status:in:)``, and therefore a run over that selection.
    package var limit: Int?

    package init(
        ids: [Int64] = [],
        reason: DeadLetterReason? = nil,
        since: WallTime? = nil,
        until: WallTime? = nil,
        app: String? = nil,
        eventType: String? = nil,
        subject: String? = nil,
        limit: Int? = nil
    ) {
        self.ids = ids
        self.reason = reason
        self.since = since
        self.until = until
        self.app = app
        self.eventType = eventType
        self.subject = subject
        self.limit = limit
    }

    package var isEmpty: Bool { self == DeadLetterFilter() }

    /// The filter as command-line options, for the audit.
    package var text: String {
        var parts = ids.map { "--id \($0)" }
        let named = [
            ("--reason", reason?.rawValue), ("--since", since?.iso8601), ("--until", until?.iso8601), ("--app", app),
            ("--type", eventType), ("--sub", subject),
        ]
        parts += named.compactMap { name, value in value.map { "\(name) \($0)" } }
        if parts.isEmpty { parts = ["--all"] }
        if let limit { parts.append("--limit \(limit)") }
        return parts.joined(separator: " ")
    }
}

extension Conditions {
    /// - Parameters:
    ///   - status: nil matches every status.
    ///   - isFurtherNarrowed: true if the caller will add conditions on columns that no index of open letters contains.
    init(_ filter: DeadLetterFilter, status: DeadLetterStatus?, isFurtherNarrowed: Bool = false) {
        // Status and reason are written into the statement because the partial indexes depend on them.
        if let status {
            // An index of open letters reads every open letter. If there is a condition on another column, the index of that
            // column or a sequential scan is faster. A planner without statistics would still use an index of open letters;
            // BETWEEN prevents that, because the condition then does not match the predicate of the index.
            let isNarrowed =
                isFurtherNarrowed || filter.app != nil || filter.eventType != nil || filter.subject != nil
                || filter.since != nil || filter.until != nil
            let word = "'\(status.rawValue)'"
            add(isNarrowed ? "status BETWEEN \(word) AND \(word)" : "status = \(word)")
        }
        if let reason = filter.reason { add("reason = '\(reason.rawValue)'") }
        if !filter.ids.isEmpty { add("id", anyOf: filter.ids) }
        add("received_at >= ?", filter.since)
        add("received_at < ?", filter.until)
        add("aud = ?", filter.app)
        add(eventType: filter.eventType)
        add("sub = ?", filter.subject)
    }
}
