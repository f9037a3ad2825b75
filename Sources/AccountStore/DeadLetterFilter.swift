package import AppleTokens
import Postgres

/// Where a dead letter stands (`siwa.dead_letters.status`).
package enum DeadLetterStatus: String, Sendable, Hashable, CaseIterable {
    /// It waits for an operator.
    case open
    /// It was processed after all.
    case replayed
    /// An operator decided that it won't be.
    case discarded
}

/// Which dead letters are looked for: those that meet everything that is named.
package struct DeadLetterFilter: Sendable, Equatable {
    /// These; empty: any.
    package var ids: [Int64]
    /// Why they were kept.
    package var reason: DeadLetterReason?
    /// Received at or after.
    package var since: WallTime?
    /// Received before.
    package var until: WallTime?
    /// `aud` as it stands in the token.
    package var app: String?
    /// `type` as Apple spelt it; a deletion is found by either spelling.
    package var eventType: String?
    /// `sub` as it stands in the token.
    package var subject: String?
    /// Of those that match, at most so many, by their ids; nil: all. It bounds what ``DeadLetters/select(_:status:in:)``
    /// finds, and so a run over that.
    package var limit: Int?

    /// All of them, unless something is named.
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

    /// Whether it names nothing.
    package var isEmpty: Bool { self == DeadLetterFilter() }

    /// The filter as an operator would write it, for the audit.
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

/// The WHERE of a statement, put together from those conditions that a filter names, so that each is planned for what it
/// really looks for.
struct DeadLetterConditions {
    private(set) var conditions: [String] = []
    private(set) var binds = Binds()

    /// What a filter names; nil: in any status.
    ///
    /// - Parameter isFurtherNarrowed: conditions will be added that no index of open letters holds.
    init(_ filter: DeadLetterFilter, status: DeadLetterStatus?, isFurtherNarrowed: Bool = false) {
        // Words of ours are written out, not bound: they decide which index fits.
        if let status {
            // The indexes of open letters lead to each of them one by one. Where something is named that they don't hold,
            // its own index, or one pass over the table, is faster; a planner without statistics takes an index of open
            // letters all the same, unless the status is put as no index puts it.
            let isNarrowed =
                isFurtherNarrowed || filter.app != nil || filter.eventType != nil || filter.subject != nil
                || filter.since != nil || filter.until != nil
            let word = "'\(status.rawValue)'"
            conditions.append(isNarrowed ? "status BETWEEN \(word) AND \(word)" : "status = \(word)")
        }
        if let reason = filter.reason { conditions.append("reason = '\(reason.rawValue)'") }
        if !filter.ids.isEmpty { add("id = ANY (?)") { $0.append(array: filter.ids) } }
        if let since = filter.since { add("received_at >= ?") { $0.append(Timestamp(since)) } }
        if let until = filter.until { add("received_at < ?") { $0.append(Timestamp(until)) } }
        if let app = filter.app { add("aud = ?") { $0.append(app) } }
        if let type = filter.eventType {
            let deletion = ["account-delete", "account-deleted"]
            add("event_type = ANY (?)") { $0.append(array: deletion.contains(type) ? deletion : [type]) }
        }
        if let subject = filter.subject { add("sub = ?") { $0.append(subject) } }
    }

    /// A further condition, its one value written `?`.
    mutating func add(_ condition: String, _ bind: (inout Binds) -> Void) {
        conditions.append(parameter(in: condition, bind))
    }

    /// A piece of the statement with the place of a value, written `?`, put in.
    mutating func parameter(in text: String, _ bind: (inout Binds) -> Void) -> String {
        bind(&binds)
        return text.split(separator: "?", omittingEmptySubsequences: false).joined(separator: "$\(binds.count)")
    }

    /// The conditions as SQL.
    var sql: String { conditions.isEmpty ? "true" : conditions.joined(separator: " AND ") }
}
