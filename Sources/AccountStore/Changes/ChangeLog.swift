package import AppleTokens
package import Basics
package import Postgres

/// A published change (`siwa.changes`).
package struct PublishedChange: Sendable, Equatable {
    /// Counts from 1, without gaps.
    package let position: Int64
    package let publishedAt: WallTime
    /// A name of the event catalogue.
    package let type: String
    /// `app` if it concerns the person in ``app``, `team` if it concerns all apps of the team.
    package let scope: String
    package let team: TeamID
    package let subject: Subject
    /// The app group of the notification, sign-in or session that caused it.
    package let app: AppID
    /// `consent`, `account`, `email` or `session`.
    package let facet: String
    package let fromState: String
    package let toState: String
    /// The time of the event at Apple, of the sign-in, or of the end of the session.
    package let eventTime: WallTime
    /// When its transaction started, by the database's clock.
    package let recordedAt: WallTime
    /// `jti` of the notification that caused it; nil for a sign-in or an operator.
    package let notificationID: String?
    package let sessionsEnded: Int
    /// The session that an operator ended.
    package let sessionID: String?
    package let accountID: Int64
    package let changeID: Int64

    package init(
        position: Int64,
        publishedAt: WallTime,
        type: String,
        scope: String,
        team: TeamID,
        subject: Subject,
        app: AppID,
        facet: String,
        fromState: String,
        toState: String,
        eventTime: WallTime,
        recordedAt: WallTime,
        notificationID: String?,
        sessionsEnded: Int,
        sessionID: String?,
        accountID: Int64,
        changeID: Int64
    ) {
        self.position = position
        self.publishedAt = publishedAt
        self.type = type
        self.scope = scope
        self.team = team
        self.subject = subject
        self.app = app
        self.facet = facet
        self.fromState = fromState
        self.toState = toState
        self.eventTime = eventTime
        self.recordedAt = recordedAt
        self.notificationID = notificationID
        self.sessionsEnded = sessionsEnded
        self.sessionID = sessionID
        self.accountID = accountID
        self.changeID = changeID
    }
}

/// Conditions on published changes; nil matches everything.
package struct ChangeFilter: Sendable {
    /// Names of the event catalogue; empty: all.
    package var types: [String] = []
    package var subject: String?
    package var team: String?
    /// Changes of scope `app` in this app group, and changes of scope `team` in its team, whatever app reported them.
    package var app: String?
    /// Published at or after.
    package var since: WallTime?
    /// Published before.
    package var until: WallTime?
    package var limit = 50

    package init() {}
}

extension Conditions {
    /// Conditions on `siwa.changes AS c`.
    mutating func add(_ filter: ChangeFilter) {
        if !filter.types.isEmpty { add("c.type", anyOf: filter.types) }
        add("c.sub = ?", filter.subject)
        add("c.team_id = ?", filter.team)
        let sameTeam = "c.team_id IN (SELECT k.team_id FROM siwa.clients AS k WHERE k.app_id = ?)"
        add("(c.app_id = ? OR c.scope = 'team' AND \(sameTeam))", filter.app)
        add("c.position > siwa.position_at(?)", filter.since)
        add("c.position <= siwa.position_at(?)", filter.until)
    }
}

extension PublishedChange {
    /// The columns of the properties, in their order, of `siwa.changes AS c`.
    static let columns = """
        c.position, c.published_at, c.type, c.scope, c.team_id, c.sub, c.app_id, c.facet, c.from_state, c.to_state,
        c.event_time, c.recorded_at, c.jti, c.sessions_ended, c.session_id, c.account_id, c.change_id
        """
}

/// Reads the log of changes.
package enum ChangeLog {
    /// A part of the log.
    package struct Page: Sendable {
        /// The matching changes, in the order of their positions.
        package let changes: [PublishedChange]
        /// All matching changes up to this position are read.
        package let position: Int64
        /// The last position of the log.
        package let end: Int64
    }

    /// The matching changes, latest first.
    package static func list(
        _ filter: ChangeFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [PublishedChange] {
        var conditions = Conditions()
        conditions.add(filter)
        let limit = conditions.bind(filter.limit)
        return try read(conditions, order: "position DESC", limit: limit, in: session)
    }

    package static func find(
        position: Int64,
        in session: borrowing Session
    ) throws(PostgresError) -> PublishedChange? {
        var conditions = Conditions()
        conditions.add("position = ?", position)
        return try read(conditions, order: "position", limit: "1", in: session).first
    }

    /// The matching changes after a position, up to the limit of the filter. Use it in a repeatable-read transaction.
    package static func page(
        after position: Int64,
        _ filter: ChangeFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> Page {
        let end = try end(in: session)
        guard end > position else { return Page(changes: [], position: position, end: end) }
        var conditions = Conditions()
        conditions.add(filter)
        conditions.add("position > ?", position)
        conditions.add("position <= ?", end)
        let limit = conditions.bind(filter.limit)
        let changes = try read(conditions, order: "position", limit: limit, in: session)
        let isFull = changes.count == filter.limit
        return Page(changes: changes, position: isFull ? changes.last?.position ?? end : end, end: end)
    }

    /// The last position; 0 if the log is empty.
    package static func end(in session: borrowing Session) throws(PostgresError) -> Int64 {
        try session.execute(once: "SELECT position FROM siwa.publication").int64(0, 0)
    }

    /// The known addresses of people by their `accountID`, for events that contain them. Erased people have none.
    package static func addresses(
        of accounts: [Int64],
        in session: borrowing Session
    ) throws(PostgresError) -> [Int64: String] {
        let rows = try session.execute(knownAddresses, Binds { $0.append(array: accounts) })
        let pairs = try rows.decode { (account: Int64, email: String) in (account, email) }
        return Dictionary(uniqueKeysWithValues: pairs)
    }

    /// The last position that was published before a time; 0 if none was.
    package static func position(at time: WallTime, in session: borrowing Session) throws(PostgresError) -> Int64 {
        try session.execute(once: "SELECT siwa.position_at($1)", time).int64(0, 0)
    }

    private static let knownAddresses = Statement(
        "SELECT account_id, email FROM siwa.accounts WHERE account_id = ANY ($1) AND email IS NOT NULL"
    )

    private static func read(
        _ conditions: Conditions,
        order: String,
        limit: String,
        in session: borrowing Session
    ) throws(PostgresError) -> [PublishedChange] {
        let statement = Statement(
            once: """
                SELECT \(PublishedChange.columns) FROM siwa.changes AS c
                WHERE \(conditions.sql)
                ORDER BY \(order)
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(PublishedChange.init)
    }
}
