package import AppleTokens
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
}

/// The numbers of sessions, and of sessions that are live now by the database's clock.
package struct SessionCount: Sendable, Equatable {
    package let all: Int
    package let live: Int

    package init(all: Int, live: Int) {
        self.all = all
        self.live = live
    }
}

/// Conditions on sessions; nil matches everything.
package struct SessionFilter: Sendable {
    /// Live or not now, by the database's clock.
    package enum Liveness: Sendable, Equatable {
        case live
        /// Includes expired.
        case ended
    }

    /// The reasons for which sessions end.
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

    /// True if it has a condition on the session id or the person.
    var isSpecific: Bool { id != nil || subject != nil }

    /// The filter as command-line options, for the audit.
    var audited: String {
        let parts = [("--session", id), ("--sub", subject), ("--team", team), ("--app", app)]
        return parts.compactMap { name, value in value.map { "\(name) \($0)" } }.joined(separator: " ")
    }

    /// SQL for a row of `siwa.sessions`, with ``binds``. PostgreSQL removes the absent conditions when it plans the statement
    /// for the actual values.
    static let condition = """
        ($1::text IS NULL OR session_id = $1)
        AND ($2::text IS NULL OR sub = $2)
        AND ($3::text IS NULL OR team_id = $3)
        AND ($4::text IS NULL OR app_id = $4)
        AND ($5::boolean IS NULL OR (ended_at IS NULL AND (expires_at IS NULL OR expires_at > now())) = $5)
        AND ($6::text IS NULL OR end_reason = $6)
        AND (NOT $7::boolean OR (ended_at IS NULL AND expires_at <= now()))
        AND created_at >= $8
        AND created_at < $9
        """

    /// The values of ``condition``, followed by the limit.
    var binds: Binds {
        Binds {
            $0.append(id)
            $0.append(subject)
            $0.append(team)
            $0.append(app)
            $0.append(liveness.map { $0 == .live })
            $0.append(endReason == Self.expired ? nil : endReason)
            $0.append(endReason == Self.expired)
            $0.append(Timestamp(since ?? WallTime(microseconds: .min)))
            $0.append(Timestamp(until ?? WallTime(microseconds: .max)))
            $0.append(limit.map { Int64(clamping: $0) })
        }
    }
}

/// Reads and ends sessions.
package enum Sessions {
    /// The matching sessions, most recently opened first.
    package static func list(
        _ filter: SessionFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountSession] {
        let statement = filter.isSpecific ? list : newest
        return try session.execute(statement, filter.binds).map { (rows, row) throws(PostgresError) in
            AccountSession(
                id: try rows.string(row, 0),
                team: TeamID(try rows.string(row, 1)),
                subject: Subject(try rows.string(row, 2)),
                app: AppID(try rows.string(row, 3)),
                createdAt: try rows.time(row, 4),
                signedInAt: try rows.time(row, 5),
                expiresAt: try rows.optionalTime(row, 6),
                endedAt: try rows.optionalTime(row, 7),
                endReason: try rows.optionalString(row, 8),
                isLive: try rows.bool(row, 9)
            )
        }
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
            let rows = try transaction.execute(end, remaining.binds)
            guard !rows.isEmpty else { break }
            for row in 0..<rows.count where try rows.bool(row, 1) { ended.append(try rows.string(row, 0)) }
            remaining.limit = filter.limit.map { $0 - ended.count }
        }
        if !ended.isEmpty {
            try OperatorActions.record(
                OperatorAction(
                    operatorName: operatorName,
                    action: "sessions end",
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
        let binds = Binds {
            $0.append(subject.rawValue)
            $0.append(team.rawValue)
        }
        let rows = try session.execute(count, binds)
        var counts: [AppID: SessionCount] = [:]
        for row in 0..<rows.count {
            counts[AppID(try rows.string(row, 0))] = SessionCount(
                all: Int(try rows.int64(row, 1)),
                live: Int(try rows.int64(row, 2))
            )
        }
        return counts
    }

    private static let columns = """
        session_id, team_id, sub, app_id, created_at, signed_in_at, expires_at, ended_at, end_reason,
        ended_at IS NULL AND (expires_at IS NULL OR expires_at > now())
        """

    // For a filter with an id or a person, which the indexes find.
    private static let list = Statement(
        once: """
            SELECT \(columns)
            FROM siwa.sessions
            WHERE \(SessionFilter.condition)
            ORDER BY created_at DESC, session_id
            LIMIT $10
            """
    )

    // Reads sessions by the index on created_at, newest first, and looks each one up in the view until there are enough. The
    // planner cannot estimate how many rows meet the view's conditions; OFFSET 0 excludes other plans.
    private static let newest = Statement(
        once: """
            SELECT \(columns)
            FROM (SELECT session_id AS key, created_at AS opened_at FROM siwa.account_sessions) AS s
            CROSS JOIN LATERAL (SELECT * FROM siwa.sessions WHERE session_id = s.key OFFSET 0) AS v
            WHERE s.opened_at >= $8 AND s.opened_at < $9 AND \(SessionFilter.condition)
            ORDER BY s.opened_at DESC, s.key
            LIMIT $10
            """
    )

    private static let count = Statement(
        once: """
            SELECT app_id, count(*), count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > now()))
            FROM siwa.sessions
            WHERE sub = $1 AND team_id = $2
            GROUP BY app_id
            """
    )

    private static let end = Statement(
        once: """
            SELECT session_id, siwa.end_session(session_id, 'operator')
            FROM (
                SELECT session_id
                FROM siwa.sessions
                WHERE \(SessionFilter.condition)
                    AND ended_at IS NULL
                    AND (expires_at IS NULL OR expires_at > now())
                ORDER BY session_id
                LIMIT $10
            ) AS matching
            """
    )
}
