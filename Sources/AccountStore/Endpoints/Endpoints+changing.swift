package import Postgres

/// The changes that operators make. Each is called in a transaction, which also records the operator's action, and wakes the
/// daemons when it is committed.
extension Endpoints {
    /// Adds an endpoint. It gets all changes after the returned position: the row of the publication stays locked until the
    /// transaction ends, so that no round is between the two.
    ///
    /// - Parameter status: `paused` for an endpoint that gets earlier changes too, so that it gets them first.
    /// - Throws: SQLSTATE 23505 if the name is in use.
    package static func insert(
        _ configuration: EndpointConfiguration,
        status: Endpoint.Status = .enabled,
        in transaction: borrowing Session
    ) throws(PostgresError) -> (id: Int32, position: Int64) {
        let position = try lockPublication(in: transaction)
        try notify(in: transaction)
        var binds = configuration.binds
        binds.append(status)
        binds.append(status == .enabled ? nil : Endpoint.StatusReason.operator)
        let statement = Statement(
            once: """
                WITH added AS (
                    INSERT INTO siwa.endpoints (\(EndpointConfiguration.columns), status, status_reason)
                    VALUES (\(EndpointConfiguration.values), $\(binds.count - 1), $\(binds.count))
                    RETURNING endpoint_id
                )
                INSERT INTO siwa.endpoint_states (endpoint_id) SELECT endpoint_id FROM added RETURNING endpoint_id
                """
        )
        return (try transaction.execute(statement, binds).value(0, 0), position)
    }

    /// Locks endpoints until the transaction ends, so that no other transaction changes what is read of them from now on.
    /// Rounds of publication don't wait for the lock. A transaction that also needs the lock of ``lockPublication(in:)``
    /// takes that first, as ``delete(_:in:)`` does.
    package static func lock(_ names: [String], in transaction: borrowing Session) throws(PostgresError) {
        let statement = Statement(
            once: """
                SELECT endpoint_id FROM siwa.endpoints WHERE name = ANY ($1) ORDER BY endpoint_id FOR NO KEY UPDATE
                """
        )
        _ = try transaction.execute(statement, Binds { $0.append(array: names) })
    }

    /// Changes everything but name and status. Deliveries that wait already are delivered as they are.
    package static func update(
        _ endpoint: Int32,
        to configuration: EndpointConfiguration,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        var binds = configuration.binds
        binds.append(endpoint)
        let statement = Statement(
            once: """
                UPDATE siwa.endpoints SET (\(EndpointConfiguration.columns)) = ROW (\(EndpointConfiguration.values))
                WHERE endpoint_id = $\(binds.count)
                """
        )
        _ = try transaction.execute(statement, binds)
        try notify(in: transaction)
    }

    package static func pause(_ endpoint: Int32, in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(
            once: "UPDATE siwa.endpoints SET status = 'paused', status_reason = 'operator' WHERE endpoint_id = $1",
            endpoint
        )
        try notify(in: transaction)
    }

    /// Enables an endpoint, and closes its circuit.
    package static func resume(_ endpoint: Int32, in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(
            once: "UPDATE siwa.endpoints SET status = 'enabled', status_reason = NULL WHERE endpoint_id = $1",
            endpoint
        )
        _ = try transaction.execute(
            once: """
                UPDATE siwa.endpoint_states SET failing_since = NULL, open_until = NULL, probe_delay = NULL
                WHERE endpoint_id = $1
                """,
            endpoint
        )
        try notify(in: transaction)
    }

    /// Closes the circuit of an endpoint with a new URL: what the former one answered says nothing about it.
    package static func forgetFailures(
        of endpoint: Int32,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        _ = try transaction.execute(
            once: """
                UPDATE siwa.endpoint_states SET
                    failing_since = NULL, open_until = NULL, probe_delay = NULL,
                    last_reason = NULL, last_http_status = NULL, last_detail = NULL
                WHERE endpoint_id = $1
                """,
            endpoint
        )
    }

    package enum Resumption: Sendable {
        case enabled
        /// Another session changed it, and may have paused it, so it stays as it is.
        case changed
        case removed
    }

    /// As ``resume(_:in:)``, unless another session has changed the endpoint since it had this revision.
    package static func resume(
        _ endpoint: Int32,
        unchangedSince revision: Int32,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Resumption {
        let rows = try transaction.execute(
            once: "SELECT revision, status FROM siwa.endpoints WHERE endpoint_id = $1 FOR NO KEY UPDATE",
            endpoint
        )
        guard let found = try rows.decode({ (revision: Int32, status: Endpoint.Status) in (revision, status) }).first
        else { return .removed }
        if found.1 == .enabled { return .enabled }
        guard found.0 == revision else { return .changed }
        try resume(endpoint, in: transaction)
        return .enabled
    }

    package static func revision(of endpoint: Int32, in session: borrowing Session) throws(PostgresError) -> Int32 {
        let rows = try session.execute(once: "SELECT revision FROM siwa.endpoints WHERE endpoint_id = $1", endpoint)
        return try rows.decode { (revision: Int32) in revision }[0]
    }

    /// Makes the daemons read the endpoint and its secrets again.
    package static func touch(_ endpoint: Int32, in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(
            once: "UPDATE siwa.endpoints SET status = status WHERE endpoint_id = $1",
            endpoint
        )
        try notify(in: transaction)
    }

    package static func countDeliveries(of endpoint: Int32, in session: borrowing Session) throws(PostgresError) -> Int
    {
        let rows = try session.execute(once: "SELECT count(*) FROM siwa.deliveries WHERE endpoint_id = $1", endpoint)
        return Int(try rows.int64(0, 0))
    }

    /// Deletes some deliveries of an endpoint. Deleting all in one transaction would hold up publication.
    ///
    /// - Returns: their number; 0 if none is left.
    package static func deleteDeliveries(
        of endpoint: Int32,
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Int {
        try transaction.execute(
            once: """
                DELETE FROM siwa.deliveries
                WHERE endpoint_id = $1
                    AND position = ANY (ARRAY(SELECT position FROM siwa.deliveries WHERE endpoint_id = $1 LIMIT $2))
                """,
            endpoint,
            limit
        ).affectedRows
    }

    /// Deletes an endpoint with its secrets and its remaining deliveries.
    package static func delete(_ endpoint: Int32, in transaction: borrowing Session) throws(PostgresError) {
        // A round that inserts a delivery for it would fail.
        try lockPublication(in: transaction)
        _ = try transaction.execute(once: "DELETE FROM siwa.endpoints WHERE endpoint_id = $1", endpoint)
        try notify(in: transaction)
    }

    /// Makes the deliveries of the next positions that the endpoint wants due again, and inserts missing ones.
    /// Deliveries that wait already are left as they are.
    ///
    /// - Returns: the number of deliveries, and the last position that was examined; nil if there is none after `position`.
    package static func seek(
        _ endpoint: Int32,
        after position: Int64,
        through end: Int64,
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> (deliveries: Int, position: Int64?) {
        let (deliveries, last) = try transaction.execute(seekNext, endpoint, position, end, limit)
            .decode { (deliveries: Int, position: Int64?) in (deliveries, position) }[0]
        if deliveries > 0 { try notify(in: transaction) }
        return (deliveries, last)
    }

    /// The last position of the log. No round adds another one until the transaction ends.
    @discardableResult
    package static func lockPublication(in transaction: borrowing Session) throws(PostgresError) -> Int64 {
        try transaction.execute(once: "SELECT position FROM siwa.publication FOR UPDATE").int64(0, 0)
    }

    private static let seekNext = Statement(
        """
        WITH span AS MATERIALIZED (
            SELECT * FROM siwa.changes WHERE position > $2 AND position <= $3 ORDER BY position LIMIT $4
        ),
        made AS (
            INSERT INTO siwa.deliveries AS d (endpoint_id, position, account_id)
            SELECT e.endpoint_id, s.position, s.account_id
            FROM siwa.endpoints AS e, span AS s
            WHERE e.endpoint_id = $1
                AND siwa.endpoint_wants(e.types, e.apps, s.type, s.scope, s.app_id, ARRAY(
                    SELECT k.app_id FROM siwa.clients AS k WHERE k.team_id = s.team_id
                ))
            ORDER BY s.position
            ON CONFLICT (endpoint_id, position) DO UPDATE SET \(DeliveryRecords.begun), created_at = now()
            WHERE d.status IN ('dead', 'discarded', 'delivered')
            RETURNING d.position
        )
        SELECT (SELECT count(*) FROM made), (SELECT max(position) FROM span)
        """
    )
}

extension EndpointConfiguration {
    fileprivate static let columns = """
        name, kind, url, types, apps, ordering, concurrency, timeout, rate, retries, disable_after, signature, include, audience,
        subject, revoked_as, version
        """
    fileprivate static let values = """
        $1, $2, $3, $4::text[], $5::text[], $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17
        """

    /// For ``values``.
    fileprivate var binds: Binds {
        Binds { binds in
            func append(_ texts: [String]?) {
                if let texts { binds.append(array: texts) } else { binds.append(nil as String?) }
            }
            binds.append(name)
            binds.append(kind)
            binds.append(url)
            append(types)
            append(apps)
            binds.append(ordering)
            binds.append(concurrency)
            binds.append(timeout)
            binds.append(rate)
            binds.append(array: retries)
            binds.append(disableAfter)
            binds.append(signature)
            binds.append(array: include)
            binds.append(audience)
            binds.append(subject)
            binds.append(revokedAs)
            binds.append(version)
        }
    }
}
