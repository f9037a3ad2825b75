package import AppleTokens
package import Postgres

/// One client id of an app group (`siwa.clients`).
package struct RegisteredClient: Sendable, Equatable {
    /// A bundle id or Services ID.
    package let client: ClientID
    /// The app group, by its primary App ID.
    package let app: AppID
    /// The developer team.
    package let team: TeamID
}

/// The client ids that the SQL functions for applications know (`siwa.clients`).
package enum Clients {
    /// Adds and updates the client ids of a configuration. It removes none: another daemon may serve them.
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

    /// Client ids, by app group.
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

    /// Removes client ids, as an operator, and records that. Call it in a transaction, so that neither happens without the
    /// other.
    ///
    /// Accounts, consents and sessions stay: functions that are called with a removed client id raise SW001.
    ///
    /// - Returns: the client ids that were there.
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
