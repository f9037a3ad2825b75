import Basics
package import Postgres

/// Finds each notification once, soon after its transaction was committed.
///
/// Notifications have no column in the order of commits: `received_at` of a drained spool or a replay may be days old, and
/// `recorded_at` is the start of a transaction that may be committed after later ones. Each reading therefore starts again
/// at a time after which every notification that can still appear was recorded, and leaves out the notifications that
/// earlier readings found. Only these are remembered, so the memory is bounded by the traffic of the overlap.
package struct NotificationFollower: Sendable {
    /// Longer than siwad's transactions, which end by the deadline of their connection.
    private static let overlap = Duration.seconds(60)
    /// The limit on the overlap that a longer transaction causes.
    private static let longestOverlap = Duration.seconds(3_600)

    private struct Key: Hashable {
        let id: String
        /// A `jti` is unique in a month.
        let issuedAt: WallTime

        init(_ row: LoggedNotification) { (id, issuedAt) = (row.id, row.issuedAt) }
    }

    /// The notifications that are found now; some may have been found before.
    package struct Reading: Sendable {
        fileprivate let earlier: [LoggedNotification]
        fileprivate let recorded: [LoggedNotification]
        fileprivate let nextStart: WallTime
    }

    private let filter: NotificationFilter
    /// When the next reading starts; nil before the first one.
    private var start: WallTime?
    private var found: [Key: WallTime] = [:]

    /// - Parameter filter: its limit holds for the notifications that were recorded before the first reading.
    package init(_ filter: NotificationFilter) {
        self.filter = filter
    }

    /// Reads in a read-committed transaction. Each statement must see what was committed before it: transactions that begin
    /// after the first statement are in the overlap, and the others either are listed by it or are visible to the second.
    package func read(in session: borrowing Session) throws(PostgresError) -> Reading {
        // For sessions of other roles, a role without pg_read_all_stats sees no transactions.
        let sql = """
            SELECT now(), min(xact_start) FROM pg_catalog.pg_stat_activity
            WHERE datname = pg_catalog.current_database() AND backend_xid IS NOT NULL
            """
        let times = try session.execute(once: sql).decode { (now: WallTime, oldest: WallTime?) in (now, oldest) }
        let (now, oldest) = times[0]
        let latestStart = now - Self.overlap
        let recorded = try NotificationLog.recorded(since: start ?? latestStart, filter, in: session)
        return Reading(
            earlier: start == nil ? try NotificationLog.list(filter, in: session).reversed() : [],
            recorded: recorded,
            nextStart: max(min(oldest ?? now, latestStart), now - Self.longestOverlap)
        )
    }

    /// The notifications that no earlier reading found, in the order of their transactions. The first reading finds the
    /// latest ones, in the order of their receipt.
    package mutating func advance(with reading: Reading) -> [LoggedNotification] {
        let isFirst = start == nil
        let fresh = isFirst ? reading.earlier : reading.recorded.filter { found[Key($0)] == nil }
        for row in fresh + reading.recorded { found[Key(row)] = row.recordedAt }
        found = found.filter { $0.value >= reading.nextStart }
        start = reading.nextStart
        return fresh
    }
}
