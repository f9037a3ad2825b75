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
        var conditions = Conditions(filter)
        let limit = conditions.bind(filter.limit)
        return try read(conditions, token: "NULL::text", limit: limit, in: session)
    }

    /// The matching notifications whose transactions began at or after a time, in the order of these beginnings.
    static func recorded(
        since time: WallTime,
        _ filter: NotificationFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [LoggedNotification] {
        var conditions = Conditions(filter)
        conditions.add("recorded_at >= ?", time)
        return try read(conditions, token: "NULL::text", order: "recorded_at, received_at, jti", in: session)
    }

    /// The notifications with this `jti`: at most one in each month.
    package static func find(id: String, in session: borrowing Session) throws(PostgresError) -> [LoggedNotification] {
        let isHidden = try !session.execute(
            once: "SELECT has_column_privilege('siwa.notifications', 'jws', 'SELECT')"
        ).bool(0, 0)
        var conditions = Conditions()
        conditions.add("jti = ?", id)
        var notifications = try read(conditions, token: isHidden ? "NULL::text" : "jws", in: session)
        for index in notifications.indices { notifications[index].isTokenHidden = isHidden }
        return notifications
    }

    /// - Parameter token: SQL for the token; likewise the order and the maximum number of rows.
    private static func read(
        _ conditions: Conditions,
        token: String,
        order: String = "received_at DESC",
        limit: String = "ALL",
        in session: borrowing Session
    ) throws(PostgresError) -> [LoggedNotification] {
        let statement = Statement(
            once: """
                SELECT
                    jti, issued_at, received_at, recorded_at, team_id, app_id, sub, event_type, event_time, outcome, source,
                    sessions_ended, verified_kid, \(token), false
                FROM siwa.notifications
                WHERE \(conditions.sql)
                ORDER BY \(order)
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(LoggedNotification.init)
    }
}

extension Conditions {
    fileprivate init(_ filter: NotificationFilter) {
        add("jti = ?", filter.id)
        add("sub = ?", filter.subject)
        add("team_id = ?", filter.team)
        add("app_id = ?", filter.app)
        add(eventType: filter.eventType)
        add("outcome = ?", filter.outcome)
        add("source = ?", filter.source)
        add("received_at >= ?", filter.since)
        add("received_at < ?", filter.until)
    }
}
