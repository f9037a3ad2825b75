package import AppleTokens
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
        _ = try session.execute(
            add,
            Binds { binds in
                binds.appendTexts(clients.count) { clients[$0].client.rawValue }
                binds.appendTexts(clients.count) { clients[$0].group.app.rawValue }
                binds.appendTexts(clients.count) { clients[$0].group.team.rawValue }
            }
        )
    }

    /// Client ids, ordered by app group.
    package static func list(limit: Int, in session: borrowing Session) throws(PostgresError) -> [RegisteredClient] {
        try session.execute(list, Binds { $0.append(Int64(clamping: limit)) }).map {
            (rows, row) throws(PostgresError) in
            RegisteredClient(
                client: ClientID(try rows.string(row, 0)),
                app: AppID(try rows.string(row, 1)),
                team: TeamID(try rows.string(row, 2))
            )
        }
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
        let rows = try transaction.execute(
            remove,
            Binds { binds in binds.appendTexts(clients.count) { clients[$0].rawValue } }
        )
        let removed = try rows.map { (rows, row) throws(PostgresError) in ClientID(try rows.string(row, 0)) }
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

    private static let list = Statement(
        once: "SELECT client_id, app_id, team_id FROM siwa.clients ORDER BY app_id, client_id LIMIT $1"
    )

    private static let remove = Statement(
        once: "DELETE FROM siwa.clients WHERE client_id = ANY ($1::text[]) RETURNING client_id"
    )

    private static let add = Statement(
        once: """
            INSERT INTO siwa.clients AS k (client_id, app_id, team_id)
            SELECT client_id, app_id, team_id
            FROM unnest($1::text[], $2::text[], $3::text[]) AS c (client_id, app_id, team_id)
            ORDER BY client_id
            ON CONFLICT (client_id) DO UPDATE SET app_id = excluded.app_id, team_id = excluded.team_id
            WHERE (k.app_id, k.team_id) IS DISTINCT FROM (excluded.app_id, excluded.team_id)
            """
    )
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
        let rows = try session.execute(
            recordSignIn,
            Binds {
                $0.append(client.rawValue)
                $0.append(subject.rawValue)
                $0.append(email)
                $0.append(emailIsPrivate)
                $0.append(Timestamp(signedInAt))
            }
        )
        return try rows.int64(0, 0)
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
        let rows = try session.execute(
            openSession,
            Binds {
                $0.append(client.rawValue)
                $0.append(subject.rawValue)
                $0.append(id)
                $0.append(Timestamp(createdAt))
                $0.append(expiresAt.map { Timestamp($0) })
            }
        )
        return try rows.bool(0, 0)
    }

    /// Calls `siwa.session_is_live`.
    package static func sessionIsLive(_ id: String, in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(sessionIsLive, Binds { $0.append(id) }).bool(0, 0)
    }

    private static let recordSignIn = Statement("SELECT siwa.record_sign_in($1, $2, $3, $4, $5)")
    private static let openSession = Statement("SELECT siwa.open_session($1, $2, $3, $4, $5)")
    private static let sessionIsLive = Statement("SELECT siwa.session_is_live($1)")
}
