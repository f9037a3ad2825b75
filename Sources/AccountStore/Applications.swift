package import AppleTokens
package import Basics
package import Postgres

/// A client id of an app group (`siwa.clients`).
package struct RegisteredClient: Sendable, Equatable {
    /// A bundle id or Services ID.
    package let client: ClientID
    package let app: AppID
    package let team: TeamID
}

/// The client ids that the SQL functions for applications accept (`siwa.clients`).
package enum Clients {
    /// Adds and updates the client ids of a configuration. Removes none, because another daemon may serve them.
    package static func add(
        _ audiences: AudienceMap,
        in session: borrowing Session
    ) throws(PostgresError) {
        let clients = audiences.groups.flatMap { group in group.clients.map { (client: $0, group: group) } }
        let statement = Statement(
            once: """
                INSERT INTO siwa.clients AS k (client_id, app_id, team_id)
                SELECT client_id, app_id, team_id
                FROM unnest($1::text[], $2::text[], $3::text[]) AS c (client_id, app_id, team_id)
                ORDER BY client_id
                ON CONFLICT (client_id) DO UPDATE SET app_id = excluded.app_id, team_id = excluded.team_id
                WHERE (k.app_id, k.team_id) IS DISTINCT FROM (excluded.app_id, excluded.team_id)
                """
        )
        let binds = Binds {
            $0.append(array: clients.map(\.client))
            $0.append(array: clients.map(\.group.app))
            $0.append(array: clients.map(\.group.team))
        }
        _ = try session.execute(statement, binds)
    }

    /// Client ids, ordered by app group.
    package static func list(limit: Int, in session: borrowing Session) throws(PostgresError) -> [RegisteredClient] {
        let sql = "SELECT client_id, app_id, team_id FROM siwa.clients ORDER BY app_id, client_id LIMIT $1"
        return try session.execute(once: sql, limit).decode(RegisteredClient.init)
    }

    /// Removes client ids as an operator, and records that. Call it in a transaction, so that both happen or neither.
    ///
    /// Accounts, consents and sessions stay. SQL functions raise SW001 for a removed client id.
    ///
    /// - Returns: the client ids that existed.
    package static func remove(
        _ clients: [ClientID],
        by operatorName: String,
        note: String,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [ClientID] {
        let statement = Statement(
            once: "DELETE FROM siwa.clients WHERE client_id = ANY ($1::text[]) RETURNING client_id"
        )
        let rows = try transaction.execute(statement, Binds { $0.append(array: clients) })
        let removed = try rows.decode { (client: ClientID) in client }
        if !removed.isEmpty {
            try OperatorActions.record(
                OperatorAction(
                    operatorName: operatorName,
                    action: "clients remove",
                    target: removed.map(\.rawValue).joined(separator: " "),
                    note: note,
                    affected: removed.count
                ),
                in: transaction
            )
        }
        return removed
    }
}

/// Calls the SQL functions for applications. Used by the demonstration and by tests.
package enum Applications {
    /// Calls `siwa.record_sign_in`.
    ///
    /// - Returns: the account's id.
    /// - Throws: SQLSTATE SW001 for an unknown client id, SW002 for a deleted account, SW006 for a time in the future.
    @discardableResult
    package static func recordSignIn(
        client: ClientID,
        subject: Subject,
        email: String? = nil,
        emailIsPrivate: Bool? = nil,
        signedInAt: WallTime,
        in session: borrowing Session
    ) throws(PostgresError) -> Int64 {
        try session.execute(recordSignIn, client, subject, email, emailIsPrivate, signedInAt).int64(0, 0)
    }

    /// Calls `siwa.open_session`.
    ///
    /// - Returns: true if the session is live.
    /// - Throws: SQLSTATE SW001 for an unknown client id, SW003 if no sign-in is recorded, SW004 if another person has the
    ///   session id, SW005 for an expiry that is not after the opening.
    @discardableResult
    package static func openSession(
        client: ClientID,
        subject: Subject,
        session id: String,
        createdAt: WallTime,
        expiresAt: WallTime? = nil,
        in session: borrowing Session
    ) throws(PostgresError) -> Bool {
        try session.execute(openSession, client, subject, id, createdAt, expiresAt).bool(0, 0)
    }

    /// Calls `siwa.end_session`.
    ///
    /// - Returns: whether it ended the session.
    package static func endSession(_ id: String, in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(endSession, id).bool(0, 0)
    }

    /// Calls `siwa.session_is_live`.
    package static func sessionIsLive(_ id: String, in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(sessionIsLive, id).bool(0, 0)
    }

    private static let recordSignIn = Statement("SELECT siwa.record_sign_in($1, $2, $3, $4, $5)")
    private static let openSession = Statement("SELECT siwa.open_session($1, $2, $3, $4, $5)")
    private static let endSession = Statement("SELECT siwa.end_session($1)")
    private static let sessionIsLive = Statement("SELECT siwa.session_is_live($1)")
}
