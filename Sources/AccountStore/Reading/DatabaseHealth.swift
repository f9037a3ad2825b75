package import AppleTokens
package import Basics
package import Postgres

/// Facts about the database for `siwad doctor`.
package enum DatabaseHealth {
    package struct Server: Sendable, Equatable {
        /// `15.14`
        package let version: String
        package let database: String
        package let bytes: Int64
        package let clock: WallTime
    }

    package struct OpenLetters: Sendable {
        /// The number by reason as stored, largest first.
        package let counts: [(reason: String, count: Int)]
        package let oldest: WallTime?
    }

    /// How many of the latest notifications ``lastNotifications(in:)`` reads.
    package static let notificationsLookedAt = 100_000

    package static func server(in session: borrowing Session) throws(PostgresError) -> Server {
        try session.execute(
            once: """
                SELECT
                    split_part(current_setting('server_version'), ' ', 1), current_database()::text,
                    pg_database_size(current_database()), clock_timestamp()
                """
        ).decode(Server.init)[0]
    }

    /// Identifies the database among all others, also from a copy, and is the same after a failover. Sixteen hexadecimal
    /// digits of a hash.
    package static func identity(in session: borrowing Session) throws(PostgresError) -> String {
        try session.execute(
            once: """
                SELECT left(encode(sha256(convert_to(
                    concat_ws('/', s.system_identifier, d.oid, to_regnamespace('siwa')::oid), 'UTF8'
                )), 'hex'), 16)
                FROM pg_control_system() AS s, pg_database AS d
                WHERE d.datname = current_database()
                """
        ).string(0, 0)
    }

    /// Whether the current month and the next two have partitions.
    package static func monthsAhead(in session: borrowing Session) throws(PostgresError) -> [Bool] {
        try session.execute(once: String(sql: PackageResources.months_ahead_sql)).decode { (exists: Bool) in exists }
    }

    /// When the last notification of each app was received, among the latest ``notificationsLookedAt``.
    package static func lastNotifications(in session: borrowing Session) throws(PostgresError) -> [AppID: WallTime] {
        let sql = """
            SELECT app_id, max(received_at)
            FROM (SELECT app_id, received_at FROM siwa.notifications ORDER BY received_at DESC LIMIT $1) AS latest
            GROUP BY app_id
            """
        let times = try session.execute(once: sql, notificationsLookedAt).decode { (app: AppID, time: WallTime) in
            (app, time)
        }
        return Dictionary(uniqueKeysWithValues: times)
    }

    package static func openLetters(in session: borrowing Session) throws(PostgresError) -> OpenLetters {
        let reasons = try session.execute(
            once: """
                SELECT reason, count(*), min(received_at) FROM siwa.dead_letters
                WHERE status = 'open'
                GROUP BY reason
                ORDER BY count(*) DESC, reason
                """
        ).decode { (reason: String, count: Int, oldest: WallTime) in (reason, count, oldest) }
        return OpenLetters(counts: reasons.map { ($0.0, $0.1) }, oldest: reasons.map(\.2).min())
    }

    /// When a daemon last stored the key set of a URL; nil if never.
    package static func keysKeptAt(from url: String, in session: borrowing Session) throws(PostgresError) -> WallTime? {
        try session.execute(once: "SELECT max(last_seen) FROM siwa.signing_keys WHERE url = $1", url).value(0, 0)
    }

    /// True if PUBLIC, and therefore every role, may create objects in the schema `public`.
    package static func isPublicSchemaOpen(in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(
            once: """
                SELECT EXISTS (
                    SELECT FROM pg_catalog.pg_namespace AS n
                    WHERE n.nspname = 'public' AND pg_catalog.has_schema_privilege('public', n.oid, 'CREATE')
                )
                """
        ).bool(0, 0)
    }
}
