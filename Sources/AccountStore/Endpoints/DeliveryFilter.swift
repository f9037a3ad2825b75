package import Basics
import Postgres

/// `siwa.deliveries.status`.
package enum DeliveryStatus: String, PostgresValue, Sendable, Hashable, CaseIterable {
    /// Never attempted, or in its first attempt.
    case pending
    /// Attempted, and attempted again later.
    case retry
    /// Given up; waits for an operator.
    case dead
    /// Given up by an operator.
    case discarded
    case delivered
}

/// The key of a delivery: `shop/4711`.
package struct DeliveryID: Sendable, Hashable, CustomStringConvertible {
    package let endpoint: String
    package let position: Int64

    package init(endpoint: String, position: Int64) {
        self.endpoint = endpoint
        self.position = position
    }

    package init?(_ text: String) {
        let parts = text.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count == 2, !parts[0].isEmpty, let position = Int64(parts[1]), position > 0 else { return nil }
        self.init(endpoint: String(parts[0]), position: position)
    }

    package var description: String { "\(endpoint)/\(position)" }
}

/// Conditions on deliveries. A delivery matches if it meets all conditions that are set.
package struct DeliveryFilter: Sendable {
    /// Empty matches every id.
    package var ids: [DeliveryID] = []
    /// The name of an endpoint.
    package var endpoint: String?
    /// Empty matches every status.
    package var statuses: [DeliveryStatus] = []
    /// Of the last failed attempt.
    package var reason: String?
    /// Made at or after.
    package var since: WallTime?
    /// Made before.
    package var until: WallTime?
    /// Of changes up to this position. No option sets it.
    package var lastPosition: Int64?
    /// Conditions on the change: types, app, team and subject.
    package var change = ChangeFilter()

    package init() {}

    /// The filter as command-line options, for the audit.
    package var text: String {
        var parts = ids.map { "--id \($0)" }
        parts += endpoint.map { ["--endpoint \($0)"] } ?? []
        parts += statuses.map { "--status \($0.rawValue)" }
        let times = [("--since", since?.iso8601), ("--until", until?.iso8601)]
        parts += ([("--reason", reason)] + times).compactMap { name, value in value.map { "\(name) \($0)" } }
        parts += change.types.map { "--type \($0)" }
        parts += [("--app", change.app), ("--sub", change.subject)].compactMap { name, value in
            value.map { "\(name) \($0)" }
        }
        return parts.joined(separator: " ")
    }

    /// True if conditions name columns of `siwa.changes`.
    var needsChange: Bool { !change.types.isEmpty || change.app != nil || change.subject != nil }
}

extension Conditions {
    /// Conditions on `siwa.deliveries AS d`, `siwa.endpoints AS e` and, if the filter needs it, `siwa.changes AS c`.
    init(_ filter: DeliveryFilter) {
        if !filter.ids.isEmpty {
            let (names, positions) = (filter.ids.map(\.endpoint), filter.ids.map(\.position))
            let (first, second) = (bind(array: names), bind(array: positions))
            add("(e.name COLLATE \"C\", d.position) IN (SELECT * FROM unnest(\(first), \(second)))")
        }
        // Written into the statement because the partial indexes depend on it.
        if !filter.statuses.isEmpty {
            add("d.status IN (\(filter.statuses.map { "'\($0.rawValue)'" }.joined(separator: ", ")))")
        }
        add("e.name = ?", filter.endpoint)
        add("d.reason = ?", filter.reason)
        add("d.created_at >= ?", filter.since)
        add("d.created_at < ?", filter.until)
        add("d.position <= ?", filter.lastPosition)
        if filter.needsChange { add(filter.change) }
    }
}
