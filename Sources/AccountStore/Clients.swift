public import AppleNotifications
public import Postgres

/// The configured apps, as the SQL functions for applications know them (`siwa.clients`).
public enum Clients {
    /// Makes `siwa.clients` say what the configuration says: adds, changes and removes rows.
    public static func synchronize(
        with audiences: AudienceMap,
        in session: borrowing Session
    ) throws(PostgresError) {
        let clients = audiences.groups.flatMap { group in group.clients.map { (client: $0, group: group) } }
        _ = try session.execute(
            synchronize,
            Binds { binds in
                binds.appendTexts(clients.count) { clients[$0].client.rawValue }
                binds.appendTexts(clients.count) { clients[$0].group.app.rawValue }
                binds.appendTexts(clients.count) { clients[$0].group.team.rawValue }
            }
        )
    }

    private static let synchronize = Statement(
        once: """
            WITH configured AS (
                SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS c (client_id, app_id, team_id)
            ),
            removed AS (
                DELETE FROM siwa.clients AS k
                WHERE NOT EXISTS (SELECT FROM configured AS c WHERE c.client_id = k.client_id)
            )
            INSERT INTO siwa.clients AS k (client_id, app_id, team_id)
            SELECT client_id, app_id, team_id FROM configured ORDER BY client_id
            ON CONFLICT (client_id) DO UPDATE SET app_id = excluded.app_id, team_id = excluded.team_id
            WHERE (k.app_id, k.team_id) IS DISTINCT FROM (excluded.app_id, excluded.team_id)
            """
    )
}
