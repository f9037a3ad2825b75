package import AppleTokens
package import Basics
package import Postgres

/// One session of an application (`siwa.sessions`).
package struct AccountSession: Sendable, Equatable {
    /// The application's name for the session.
    package let id: String
    package let team: TeamID
    package let subject: Subject
    package let app: AppID
    package let createdAt: WallTime
    /// The time of the sign-in that it rests on. A revocation at or after this time ends the session.
    package let signedInAt: WallTime
    package let expiresAt: WallTime?
    /// nil if it is live or has expired.
    package let endedAt: WallTime?
    /// `consent-revoked`, `account-deleted`, `signed-out`, `rotated` or `operator`.
    package let endReason: String?
    /// Whether it is live now, by the database's clock.
    package let isLive: Bool
    /// The action by which an operator ended it, of `siwa.operator_actions`; nil if none is recorded.
    package var endAction: Int64?
    package var endedBy: String?
    package var endNote: String?
}

/// The numbers of sessions, and of sessions that are live now by the database's clock.
package struct SessionCount: Sendable, Equatable {
    package let all: Int
    package let live: Int
    /// Sessions that the revocation of the consent ended.
    package let revoked: Int

    package init(all: Int, live: Int, revoked: Int = 0) {
        self.all = all
        self.live = live
        self.revoked = revoked
    }
}

/// Conditions on sessions; nil matches everything.
package struct SessionFilter: Sendable {
    package enum Liveness: Sendable, Equatable {
        case live
        /// Includes expired.
        case ended
    }

    package static let endReasons = [
        "consent-revoked", "account-deleted", "signed-out", "rotated", "operator", expired,
    ]
    static let expired = "expired"

    /// The application's name for the session.
    package var id: String?
    package var subject: String?
    package var team: String?
    package var app: String?
    package var liveness: Liveness?
    /// One of ``endReasons``.
    package var endReason: String?
    /// Opened at or after.
    package var since: WallTime?
    /// Opened before.
    package var until: WallTime?
    /// The maximum number of rows; nil means all.
    package var limit: Int?

    package init(
        id: String? = nil,
        subject: String? = nil,
        team: String? = nil,
        app: String? = nil,
        liveness: Liveness? = nil,
        endReason: String? = nil,
        since: WallTime? = nil,
        until: WallTime? = nil,
        limit: Int? = 50
    ) {
        self.id = id
        self.subject = subject
        self.team = team
        self.app = app
        self.liveness = liveness
        self.endReason = endReason
        self.since = since
        self.until = until
        self.limit = limit
    }

    var isSpecific: Bool { id != nil || subject != nil }

    /// The filter as command-line options, for the audit.
    var audited: String {
        let parts = [("--session", id), ("--sub", subject), ("--team", team), ("--app", app)]
        return parts.compactMap { name, value in value.map { "\(name) \($0)" } }.joined(separator: " ")
    }

    fileprivate var conditions: (conditions: Conditions, limit: String) {
        var conditions = Conditions()
        conditions.add("session_id = ?", id)
        conditions.add("sub = ?", subject)
        conditions.add("team_id = ?", team)
        conditions.add("app_id = ?", app)
        conditions.add("(\(Sessions.isLive)) = ?", liveness.map { $0 == .live })
        if endReason == Self.expired {
            conditions.add("ended_at IS NULL AND expires_at <= now()")
        } else {
            conditions.add("end_reason = ?", endReason)
        }
        conditions.add("created_at >= ?", since)
        conditions.add("created_at < ?", until)
        let limit = conditions.bind(limit)
        return (conditions, limit)
    }
}

package enum Sessions {
    fileprivate static let isLive = "ended_at IS NULL AND (expires_at IS NULL OR expires_at > now())"
    private static let columns = """
        session_id, team_id, sub, app_id, created_at, signed_in_at, expires_at, ended_at, end_reason, \(isLive), \
        NULL::bigint, NULL::text, NULL::text
        """

    /// The matching sessions, most recently opened first.
    package static func list(
        _ filter: SessionFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountSession] {
        var (conditions, limit) = filter.conditions
        var source = "siwa.sessions"
        if !filter.isSpecific {
            // Reads sessions by the index on created_at, newest first, and looks each one up in the view until there are
            // enough. The planner cannot estimate how many rows meet the view's conditions; OFFSET 0 excludes other plans.
            source = """
                (SELECT session_id AS key, created_at AS opened_at FROM siwa.account_sessions) AS s
                CROSS JOIN LATERAL (SELECT * FROM siwa.sessions WHERE session_id = s.key OFFSET 0) AS v
                """
            conditions.add("opened_at >= ?", filter.since)
            conditions.add("opened_at < ?", filter.until)
        }
        let order = filter.isSpecific ? "created_at DESC, session_id" : "opened_at DESC, key"
        let statement = Statement(
            once: """
                SELECT \(columns)
                FROM \(source)
                WHERE \(conditions.sql)
                ORDER BY \(order)
                LIMIT \(limit)
                """
        )
        return try explained(try session.execute(statement, conditions.binds).decode(AccountSession.init), in: session)
    }

    /// Of each app group in which a person has a session that is not live, the one that ended last. A revocation has the time
    /// of its notice also for sessions that had expired before.
    package static func lastEnded(
        subject: Subject,
        team: TeamID,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountSession] {
        let sql = """
            SELECT DISTINCT ON (app_id) \(columns)
            FROM siwa.sessions
            WHERE sub = $1 AND team_id = $2 AND NOT (\(isLive))
            ORDER BY app_id, least(ended_at, expires_at) DESC, session_id
            """
        return try explained(try session.execute(once: sql, subject, team).decode(AccountSession.init), in: session)
    }

    /// The sessions with the actions by which operators ended them.
    private static func explained(
        _ found: [AccountSession],
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountSession] {
        var sessions = found
        // An operator's action has the time of the transaction that closed its sessions.
        let times = sessions.filter { $0.endReason == "operator" }.compactMap(\.endedAt)
        let actions = times.isEmpty ? [] : try OperatorActions.sessionEnds(at: times, in: session)
        for index in sessions.indices where sessions[index].endReason == "operator" {
            guard let action = actions.first(where: { sessions[index].isEnded(by: $0) }) else { continue }
            sessions[index].endAction = action.id
            sessions[index].endedBy = action.operatorName
            sessions[index].endNote = action.note
        }
        return sessions
    }

    /// Ends the matching live sessions as an operator, and records that. Call it in a transaction, so that both happen or
    /// neither.
    ///
    /// - Returns: the ids of the ended sessions.
    package static func end(
        _ filter: SessionFilter,
        by operatorName: String,
        note: String,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [String] {
        var ended: [String] = []
        var remaining = filter
        // Repeats until no live session matches. If the statement waits for a session that is being rotated, only the next
        // statement sees the session that replaces it.
        while remaining.limit ?? 1 > 0 {
            let (conditions, limit) = remaining.conditions
            let statement = Statement(
                once: """
                    SELECT session_id, siwa.end_session(session_id, 'operator')
                    FROM (
                        SELECT session_id FROM siwa.sessions
                        WHERE \(conditions.sql) AND \(isLive)
                        ORDER BY session_id
                        LIMIT \(limit)
                    ) AS matching
                    """
            )
            let rows = try transaction.execute(statement, conditions.binds)
            guard !rows.isEmpty else { break }
            for row in 0..<rows.count where try rows.bool(row, 1) { ended.append(try rows.string(row, 0)) }
            remaining.limit = filter.limit.map { $0 - ended.count }
        }
        if !ended.isEmpty {
            try OperatorActions.record(
                OperatorAction(
                    operatorName: operatorName,
                    action: OperatorActions.sessionsEnd,
                    target: filter.audited,
                    note: note,
                    affected: ended.count
                ),
                in: transaction
            )
        }
        return ended
    }

    /// The numbers of a person's sessions by app group.
    package static func count(
        subject: Subject,
        team: TeamID,
        in session: borrowing Session
    ) throws(PostgresError) -> [AppID: SessionCount] {
        let sql = """
            SELECT
                app_id, count(*), count(*) FILTER (WHERE \(isLive)), count(*) FILTER (WHERE end_reason = 'consent-revoked')
            FROM siwa.sessions
            WHERE sub = $1 AND team_id = $2
            GROUP BY app_id
            """
        let rows = try session.execute(once: sql, subject, team)
        let counts = try rows.decode { (app: AppID, all: Int, live: Int, revoked: Int) in
            (app, SessionCount(all: all, live: live, revoked: revoked))
        }
        return Dictionary(uniqueKeysWithValues: counts)
    }
}

extension AccountSession {
    /// True for the action that ended the session: its target is the filter of ``Sessions/end(_:by:note:in:)``.
    fileprivate func isEnded(by action: RecordedAction) -> Bool {
        guard action.recordedAt == endedAt else { return false }
        let target = action.target + " "
        return target.hasPrefix("--session \(id) ") || target.hasPrefix("--sub \(subject) ")
    }
}
