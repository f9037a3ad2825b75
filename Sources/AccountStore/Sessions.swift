public import AppleNotifications
public import Postgres

/// One session of an application (`siwa.sessions`).
public struct AccountSession: Sendable, Equatable {
    /// The application's name for it.
    public let id: String
    /// The developer team that ``subject`` belongs to.
    public let team: TeamID
    /// Apple's identifier of the person.
    public let subject: Subject
    /// The app group.
    public let app: AppID
    /// When it was opened.
    public let createdAt: WallTime
    /// When it ends by itself.
    public let expiresAt: WallTime?
    /// When it ended; nil while it lives or after it expired.
    public let endedAt: WallTime?
    /// `consent-revoked`, `account-deleted`, `signed-out` or `operator`.
    public let endReason: String?
    /// Whether it is live now, by the database's clock.
    public let isLive: Bool
}

/// Which sessions are looked for; nil matches everything.
public struct SessionFilter: Sendable {
    /// The application's name for the session.
    public var id: String?
    /// Apple's identifier of the person.
    public var subject: String?
    /// The developer team.
    public var team: String?
    /// The app group.
    public var app: String?
    /// Only those that are live now.
    public var onlyLive: Bool
    /// At most so many rows; nil: all.
    public var limit: Int?

    /// Everything, at most `limit` rows.
    public init(
        id: String? = nil,
        subject: String? = nil,
        team: String? = nil,
        app: String? = nil,
        onlyLive: Bool = false,
        limit: Int? = 50
    ) {
        self.id = id
        self.subject = subject
        self.team = team
        self.app = app
        self.onlyLive = onlyLive
        self.limit = limit
    }

    /// Whether it names a session or a person, rather than everybody.
    public var isSpecific: Bool { id != nil || subject != nil }

    fileprivate var binds: Binds {
        Binds {
            $0.append(id)
            $0.append(subject)
            $0.append(team)
            $0.append(app)
            $0.append(onlyLive)
            $0.append(limit.map { Int64(clamping: $0) })
        }
    }
}

/// The reading and ending of sessions.
public enum Sessions {
    /// The sessions that match, the one opened last first.
    public static func list(
        _ filter: SessionFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [AccountSession] {
        try session.execute(list, filter.binds).map { (rows, row) throws(PostgresError) in
            AccountSession(
                id: try rows.string(row, 0),
                team: TeamID(try rows.string(row, 1)),
                subject: Subject(try rows.string(row, 2)),
                app: AppID(try rows.string(row, 3)),
                createdAt: try rows.time(row, 4),
                expiresAt: try rows.optionalTime(row, 5),
                endedAt: try rows.optionalTime(row, 6),
                endReason: try rows.optionalString(row, 7),
                isLive: try rows.bool(row, 8)
            )
        }
    }

    /// Ends the live sessions that match, as an operator, and writes that down. Call it in a transaction, so that neither
    /// happens without the other.
    ///
    /// - Returns: the sessions that it ended.
    public static func end(
        _ filter: SessionFilter,
        by operatorName: String,
        note: String,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [String] {
        let rows = try transaction.execute(end, filter.binds)
        let ended = try rows.map { (rows, row) throws(PostgresError) in try rows.string(row, 0) }
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

    private static let list = Statement(
        once: """
            SELECT
                session_id, team_id, sub, app_id, created_at, expires_at, ended_at, end_reason,
                ended_at IS NULL AND (expires_at IS NULL OR expires_at > now())
            FROM siwa.sessions
            WHERE ($1::text IS NULL OR session_id = $1)
                AND ($2::text IS NULL OR sub = $2)
                AND ($3::text IS NULL OR team_id = $3)
                AND ($4::text IS NULL OR app_id = $4)
                AND (NOT $5::boolean OR (ended_at IS NULL AND (expires_at IS NULL OR expires_at > now())))
            ORDER BY created_at DESC, session_id
            LIMIT $6
            """
    )

    private static let end = Statement(
        once: """
            SELECT session_id
            FROM (
                SELECT session_id
                FROM siwa.live_sessions
                WHERE ($1::text IS NULL OR session_id = $1)
                    AND ($2::text IS NULL OR sub = $2)
                    AND ($3::text IS NULL OR team_id = $3)
                    AND ($4::text IS NULL OR app_id = $4)
                    AND $5::boolean IS NOT NULL
                ORDER BY session_id
                LIMIT $6
            ) AS matching
            WHERE siwa.end_session(session_id, 'operator')
            """
    )
}

extension SessionFilter {
    /// The filter as an operator would write it, for the audit.
    fileprivate var audited: String {
        let parts = [("--session", id), ("--sub", subject), ("--team", team), ("--app", app)]
        return parts.compactMap { name, value in value.map { "\(name) \($0)" } }.joined(separator: " ")
    }
}
