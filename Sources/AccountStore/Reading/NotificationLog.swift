package import AppleTokens
package import Postgres

/// A row of `siwa.notifications`.
package struct LoggedNotification: Sendable, Equatable {
    /// `jti`.
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
    /// The number of live sessions that it ended.
    package let sessionsEnded: Int
    package let verifiedKeyID: String
    /// The compact JWS; nil in lists and after erasure.
    package let token: String?
    /// True if the database role may not read ``token``, which is then nil.
    package var isTokenHidden = false
}

/// Conditions on notifications; nil matches everything.
package struct NotificationFilter: Sendable {
    /// `jti`.
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
    package var limit: Int

    package init(
        id: String? = nil,
        subject: String? = nil,
        team: String? = nil,
        app: String? = nil,
        eventType: String? = nil,
        outcome: String? = nil,
        source: String? = nil,
        since: WallTime? = nil,
        until: WallTime? = nil,
        limit: Int = 50
    ) {
        self.id = id
        self.subject = subject
        self.team = team
        self.app = app
        self.eventType = eventType
        self.outcome = outcome
        self.source = source
        self.since = since
        self.until = until
        self.limit = limit
    }
}

/// Reads recorded notifications.
package enum NotificationLog {
    /// The matching notifications, latest first.
    package static func list(
        _ filter: NotificationFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [LoggedNotification] {
        let deletion = ["account-delete", "account-deleted"]
        let types = filter.eventType.map { deletion.contains($0) ? deletion : [$0] }
        let binds = Binds { binds in
            binds.append(filter.subject)
            binds.append(filter.team)
            binds.append(filter.app)
            // An empty array matches every type.
            binds.append(array: types ?? [])
            binds.append(filter.outcome)
            binds.append(Timestamp(filter.since ?? WallTime(microseconds: .min)))
            binds.append(Timestamp(filter.until ?? WallTime(microseconds: .max)))
            binds.append(Int64(clamping: filter.limit))
            binds.append(filter.source)
            binds.append(filter.id)
        }
        return try session.execute(list, binds).map(read)
    }

    /// The notifications with this `jti`: at most one in each month.
    package static func find(id: String, in session: borrowing Session) throws(PostgresError) -> [LoggedNotification] {
        let isHidden = try !session.execute(mayReadTokens).bool(0, 0)
        return try session.execute(isHidden ? findHidden : find, Binds { $0.append(id) })
            .map { (rows, row) throws(PostgresError) in
                var notification = try read(rows, row)
                notification.isTokenHidden = isHidden
                return notification
            }
    }

    private static func read(_ rows: borrowing Rows, _ row: Int) throws(PostgresError) -> LoggedNotification {
        LoggedNotification(
            id: try rows.string(row, 0),
            issuedAt: try rows.time(row, 1),
            receivedAt: try rows.time(row, 2),
            recordedAt: try rows.time(row, 3),
            team: TeamID(try rows.string(row, 4)),
            app: AppID(try rows.string(row, 5)),
            subject: Subject(try rows.string(row, 6)),
            eventType: try rows.string(row, 7),
            eventTime: try rows.time(row, 8),
            outcome: try rows.string(row, 9),
            source: try rows.string(row, 10),
            sessionsEnded: Int(try rows.int32(row, 11)),
            verifiedKeyID: try rows.string(row, 12),
            token: try rows.optionalString(row, 13)
        )
    }

    private static let list = Statement(once: String(sql: PackageResources.notification_list_sql))

    private static let mayReadTokens = Statement(
        once: "SELECT has_column_privilege('siwa.notifications', 'jws', 'SELECT')"
    )
    private static let find = Statement(once: find(token: "jws"))
    private static let findHidden = Statement(once: find(token: "NULL::text"))

    private static func find(token: String) -> String {
        """
        SELECT
            jti, issued_at, received_at, recorded_at, team_id, app_id, sub, event_type, event_time, outcome, source,
            sessions_ended, verified_kid, \(token)
        FROM siwa.notifications
        WHERE jti = $1
        ORDER BY received_at DESC
        """
    }
}
