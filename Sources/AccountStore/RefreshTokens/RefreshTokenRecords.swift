package import AppleTokens
package import Basics
package import Postgres

/// A row of `siwa.refresh_tokens`, and its person.
package struct RefreshTokenRecord: Sendable, Equatable {
    package enum State: String, PostgresValue, Sendable, CaseIterable {
        case valid
        /// Apple refuses it.
        case refused
        /// No key opens it.
        case unreadable
    }

    package let accountID: Int64
    package let team: TeamID
    package let subject: Subject
    package let app: AppID
    package let client: ClientID
    package let state: State
    /// `iat` of the sign-in that got it.
    package let obtainedAt: WallTime
    /// The key of `SIWAD_SEALING_KEYS`.
    package let keyName: String
    /// When Apple last accepted it.
    package let validatedAt: WallTime?
    /// When Apple was last asked.
    package let askedAt: WallTime?
    /// When Apple may be asked next.
    package let dueAt: WallTime
    /// How often in a row Apple has refused it.
    package let refusals: Int32
}

/// Conditions on refresh tokens; nil matches everything.
package struct RefreshTokenFilter: Sendable {
    package var subjects: [String]?
    package var team: String?
    package var app: String?
    package var client: String?
    package var state: RefreshTokenRecord.State?
    package var keyName: String?

    package init() {}
}

/// The number of refresh tokens with the same key and state.
package struct RefreshTokenCount: Sendable, Equatable {
    package let keyName: String
    package let state: RefreshTokenRecord.State
    package let count: Int
}

extension RefreshTokens {
    /// The matching tokens, the latest accounts first. None has its sealed text.
    package static func list(
        _ filter: RefreshTokenFilter,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [RefreshTokenRecord] {
        var conditions = Conditions()
        if let subjects = filter.subjects { conditions.add("a.sub", anyOf: subjects) }
        conditions.add("a.team_id = ?", filter.team)
        conditions.add("t.app_id = ?", filter.app)
        conditions.add("t.client_id = ?", filter.client)
        conditions.add("t.state = ?", filter.state)
        conditions.add("t.key_name = ?", filter.keyName)
        let statement = Statement(
            once: """
                SELECT
                    t.account_id, a.team_id, a.sub, t.app_id, t.client_id, t.state, t.obtained_at, t.key_name, t.validated_at,
                    t.asked_at, t.due_at, t.refusals
                FROM siwa.refresh_tokens AS t
                JOIN siwa.accounts AS a USING (account_id)
                WHERE \(conditions.sql)
                ORDER BY t.account_id DESC, t.client_id
                LIMIT \(conditions.bind(limit))
                """
        )
        return try session.execute(statement, conditions.binds).decode(RefreshTokenRecord.init)
    }

    package static func counts(in session: borrowing Session) throws(PostgresError) -> [RefreshTokenCount] {
        let sql = "SELECT key_name, state, count(*) FROM siwa.refresh_tokens GROUP BY 1, 2 ORDER BY 1, 2"
        return try session.execute(once: sql).decode(RefreshTokenCount.init)
    }
}
