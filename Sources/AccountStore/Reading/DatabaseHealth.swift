package import AppleTokens
package import Postgres

/// Facts about the database for `siwad doctor`.
package enum DatabaseHealth {
    package struct Server: Sendable, Equatable {
        /// `15.14`
        package let version: String
        package let database: String
        /// The size of the database.
        package let bytes: Int64
        package let clock: WallTime
    }

    package struct OpenLetters: Sendable {
        /// The number by reason as stored, largest first.
        package let counts: [(reason: String, count: Int)]
        /// When the oldest letter was received.
        package let oldest: WallTime?

        package init(counts: [(reason: String, count: Int)], oldest: WallTime?) {
            self.counts = counts
            self.oldest = oldest
        }
    }

    /// How many of the latest notifications ``lastNotifications(in:)`` reads.
    package static let notificationsLookedAt = 100_000

    package static func server(in session: borrowing Session) throws(PostgresError) -> Server {
        let rows = try session.execute(server)
        return Server(
            version: try rows.string(0, 0),
            database: try rows.string(0, 1),
            bytes: try rows.int64(0, 2),
            clock: try rows.time(0, 3)
        )
    }

    /// Whether the current month and the next two have partitions.
    package static func monthsAhead(in session: borrowing Session) throws(PostgresError) -> [Bool] {
        try session.execute(monthsAhead).map { (rows, row) throws(PostgresError) in try rows.bool(row, 0) }
    }

    /// When the last notification of each app was received, among the latest ``notificationsLookedAt``.
    package static func lastNotifications(in session: borrowing Session) throws(PostgresError) -> [AppID: WallTime] {
        let rows = try session.execute(lastNotifications, Binds { $0.append(Int64(notificationsLookedAt)) })
        var times: [AppID: WallTime] = [:]
        for row in 0..<rows.count { times[AppID(try rows.string(row, 0))] = try rows.time(row, 1) }
        return times
    }

    package static func openLetters(in session: borrowing Session) throws(PostgresError) -> OpenLetters {
        let rows = try session.execute(openLetters)
        var counts: [(reason: String, count: Int)] = []
        var oldest: WallTime?
        for row in 0..<rows.count {
            counts.append((try rows.string(row, 0), Int(try rows.int64(row, 1))))
            let first = try rows.time(row, 2)
            oldest = min(oldest ?? first, first)
        }
        return OpenLetters(counts: counts, oldest: oldest)
    }

    /// When a daemon last stored the key set of a URL; nil if never.
    package static func keysKeptAt(from url: String, in session: borrowing Session) throws(PostgresError) -> WallTime? {
        try session.execute(keysKeptAt, Binds { $0.append(url) }).optionalTime(0, 0)
    }

    /// True if PUBLIC, and therefore every role, may create objects in the schema `public`.
    package static func isPublicSchemaOpen(in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(isPublicSchemaOpen).bool(0, 0)
    }

    private static let isPublicSchemaOpen = Statement(
        once: """
            SELECT EXISTS (
                SELECT FROM pg_catalog.pg_namespace AS n
                WHERE n.nspname = 'public' AND pg_catalog.has_schema_privilege('public', n.oid, 'CREATE')
            )
            """
    )

    private static let server = Statement(
        once: """
            SELECT
                split_part(current_setting('server_version'), ' ', 1), current_database()::text,
                pg_database_size(current_database()), clock_timestamp()
            """
    )

    private static let monthsAhead = Statement(once: String(sql: PackageResources.months_ahead_sql))

    private static let lastNotifications = Statement(
        once: """
            SELECT app_id, max(received_at)
            FROM (SELECT app_id, received_at FROM siwa.notifications ORDER BY received_at DESC LIMIT $1) AS latest
            GROUP BY app_id
            """
    )

    private static let openLetters = Statement(
        once: """
            SELECT reason, count(*), min(received_at) FROM siwa.dead_letters
            WHERE status = 'open'
            GROUP BY reason
            ORDER BY count(*) DESC, reason
            """
    )

    private static let keysKeptAt = Statement(once: "SELECT max(last_seen) FROM siwa.signing_keys WHERE url = $1")
}
