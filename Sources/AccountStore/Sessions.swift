package import AppleTokens
package import Postgres

/// One session of an application (`siwa.sessions`).
package struct AccountSession: Sendable, Equatable {
    /// The application's name for it.
    package let id: String
    /// The developer team that ``subject`` belongs to.
    package let team: TeamID
    /// Apple's identifier of the person.
    package let subject: Subject
    /// The app group.
    package let app: AppID
    /// When it was opened.
    package let createdAt: WallTime
    /// The sign-in that it rests on: a revocation at or after this time ends it.
    package let signedInAt: WallTime
    /// When it ends by itself.
    package let expiresAt: WallTime?
    /// When it ended; nil while it lives or after it expired.
    package let endedAt: WallTime?
    /// `consent-revoked`, `account-deleted`, `signed-out`, `rotated` or `operator`.
    package let endReason: String?
    /// Whether it is live now, by the database's clock.
    package let isLive: Bool
}

/// How many sessions there are.
package struct SessionCount: Sendable, Equatable {
    /// Live or not.
    package let all: Int
    /// Those that are live now, by the database's clock.
    package let live: Int

    /// So many.
    package init(all: Int, live: Int) {
        self.all = all
        self.live = live
    }
}

/// The reading and ending of sessions.
package enum Sessions {
    /// The sessions that match, the one opened last first.
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

    /// Ends the live sessions that match, as an operator, and writes that down. Call it in a transaction, so that neither
    /// happens without the other.
    ///
    /// - Returns: the sessions that it ended.
    package static func end(
        _ filter: SessionFilter,
        by operatorName: String,
        note: String,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [String] {
        var ended: [String] = []
        var remaining = filter
        // Repeated until it finds no live session: while the statement waits for a session that is being rotated, the
        // session that replaces it is visible only to the next statement.
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

    /// How many sessions of a person there are, by app group.
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

    // The sessions of a person, or of one id, by their indexes.
    private static let list = Statement(
        once: """
            SELECT \(columns)
            FROM siwa.sessions
            WHERE \(SessionFilter.condition)
            ORDER BY created_at DESC, session_id
            LIMIT $10
            """
    )

    // The newest first by the index on created_at, each looked at by its key, until there are enough. A view's condition
    // says nothing to the planner of how many meet it; OFFSET 0 leaves it no other way.
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
