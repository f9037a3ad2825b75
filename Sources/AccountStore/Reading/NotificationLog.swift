package import AppleTokens
package import Basics
package import Postgres

/// A row of `siwa.notifications`.
package struct LoggedNotification: Sendable, Equatable {
    package let id: String
    /// `iat`.
    package let issuedAt: WallTime
    /// When its request was read.
    package let receivedAt: WallTime
    /// When its transaction started, by the database's clock.
    package let recordedAt: WallTime
    package let team: TeamID
    package let app: AppID
    package let subject: Subject
    /// `type` in Apple's spelling.
    package let eventType: String
    package let eventTime: WallTime
    /// `applied`, `superseded` or `unchanged`.
    package let outcome: String
    /// `endpoint`, `spool` or `replay`.
    package let source: String
    package let sessionsEnded: Int
    package let verifiedKeyID: String
    /// The compact JWS; nil in lists and after erasure.
    package let token: String?
    /// True if the database role may not read ``token``, which is then nil.
    package var isTokenHidden = false
}

/// Conditions on notifications; nil matches everything.
package struct NotificationFilter: Sendable {
    package var id: String?
    package var subject: String?
    package var team: String?
    package var app: String?
    /// `type` in Apple's spelling. Either spelling of a deletion matches both.
    package var eventType: String?
    /// `applied`, `superseded` or `unchanged`.
    package var outcome: String?
    /// `endpoint`, `spool` or `replay`.
    package var source: String?
    /// Received at or after.
    package var since: WallTime?
    /// Received before.
    package var until: WallTime?
    package var limit = 50

    package init() {}
}

package enum NotificationLog {
    /// The matching notifications, latest first.
    ///
    /// An index of each partition finds the notifications of a person or a `jti`. For all other filters PostgreSQL reads the
    /// index on `received_at`, newest first, until there are enough rows.
    package static func list(
        _ filter: NotificationFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [LoggedNotification] {
        var conditions = Conditions()
        conditions.add("jti = ?", filter.id)
        conditions.add("sub = ?", filter.subject)
        conditions.add("team_id = ?", filter.team)
        conditions.add("app_id = ?", filter.app)
        conditions.add(eventType: filter.eventType)
        conditions.add("outcome = ?", filter.outcome)
        conditions.add("source = ?", filter.source)
        conditions.add("received_at >= ?", filter.since)
        conditions.add("received_at < ?", filter.until)
        let limit = conditions.bind(filter.limit)
        return try read(conditions, token: "NULL::text", limit: limit, in: session)
    }

    /// The notifications with this `jti`: at most one in each month.
    package static func find(id: String, in session: borrowing Session) throws(PostgresError) -> [LoggedNotification] {
        let isHidden = try !session.execute(
            once: "SELECT has_column_privilege('siwa.notifications', 'jws', 'SELECT')"
        ).bool(0, 0)
        var conditions = Conditions()
        conditions.add("jti = ?", id)
        var notifications = try read(conditions, token: isHidden ? "NULL::text" : "jws", limit: "ALL", in: session)
        for index in notifications.indices { notifications[index].isTokenHidden = isHidden }
        return notifications
    }

    /// - Parameters:
    ///   - token: SQL for the token.
    ///   - limit: SQL for the maximum number of rows.
    private static func read(
        _ conditions: Conditions,
        token: String,
        limit: String,
        in session: borrowing Session
    ) throws(PostgresError) -> [LoggedNotification] {
        let statement = Statement(
            once: """
                SELECT
                    jti, issued_at, received_at, recorded_at, team_id, app_id, sub, event_type, event_time, outcome, source,
                    sessions_ended, verified_kid, \(token), false
                FROM siwa.notifications
                WHERE \(conditions.sql)
                ORDER BY received_at DESC
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(LoggedNotification.init)
    }
}
