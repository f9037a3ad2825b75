package import Basics
package import Postgres

/// An endpoint and how far it is, for operators.
package struct EndpointOverview: Sendable, Equatable {
    package let endpoint: Endpoint
    package let state: EndpointState
    /// All changes up to this position that it wants were attempted, or decided upon by an operator.
    package let position: Int64
    /// The deliveries that were never attempted.
    package let behind: Int
    /// When the first of these was made; nil if there is none.
    package let oldestAt: WallTime?
    /// The deliveries that failed and are attempted again.
    package let retry: Int
    /// When the first of these was made; nil if there is none.
    package let oldestRetryAt: WallTime?
    /// The deliveries that were given up.
    package let dead: Int
    /// The operator's reason for a pause: of the latest command that paused the endpoint.
    package let pauseNote: String?
    /// Of the latest secret; nil if there is none, or if the role may not read secrets.
    package let fingerprint: String?
}

extension Endpoints {
    /// All endpoints, by name.
    package static func overviews(in session: borrowing Session) throws(PostgresError) -> [EndpointOverview] {
        let fingerprints = try EndpointSecrets.fingerprints(in: session) ?? [:]
        return try all(in: session).map { endpoint, state throws(PostgresError) in
            let rows = try session.execute(countDeliveries, endpoint.id, endpoint.name)
            return EndpointOverview(
                endpoint: endpoint,
                state: state,
                position: try rows.value(0, 0),
                behind: try rows.value(0, 1),
                oldestAt: try rows.value(0, 2),
                retry: try rows.value(0, 3),
                oldestRetryAt: try rows.value(0, 4),
                dead: try rows.value(0, 5),
                pauseNote: endpoint.status == .paused ? try rows.value(0, 6) : nil,
                fingerprint: fingerprints[endpoint.id]
            )
        }
    }

    /// Each part about deliveries reads one of the partial indexes. An interrupted add or remove leaves an endpoint paused, and
    /// so does an interrupted apply that removes it.
    private static let countDeliveries = Statement(
        """
        SELECT
            coalesce(p.first - 1, (SELECT position FROM siwa.publication)), p.count, p.oldest, r.count, r.oldest,
            (SELECT count(*) FROM siwa.deliveries WHERE endpoint_id = $1 AND status = 'dead'),
            (
                SELECT note FROM siwa.operator_actions
                WHERE target = $2 AND action IN ('endpoints pause', 'endpoints add', 'endpoints remove')
                    OR target = 'remove ' || $2 AND action = 'endpoints apply'
                ORDER BY action_id DESC LIMIT 1
            )
        FROM (
            SELECT min(position) AS first, count(*) AS count, min(created_at) AS oldest FROM siwa.deliveries
            WHERE endpoint_id = $1 AND status = 'pending'
        ) AS p, (
            SELECT count(*) AS count, min(created_at) AS oldest FROM siwa.deliveries
            WHERE endpoint_id = $1 AND status = 'retry'
        ) AS r
        """
    )
}
