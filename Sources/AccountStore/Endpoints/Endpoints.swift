import Basics
package import Postgres

/// Reads and changes `siwa.endpoints`.
package enum Endpoints {
    /// The channel of the hints to daemons that an endpoint or its deliveries were changed by an operator.
    package static let channel = "siwa_endpoints"

    /// Makes the daemons look at endpoints and deliveries soon after the transaction is committed.
    static func notify(in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(once: "SELECT pg_notify('\(channel)', '')")
    }

    /// All endpoints with their states, by name.
    package static func all(
        in session: borrowing Session
    ) throws(PostgresError) -> [(endpoint: Endpoint, state: EndpointState)] {
        let rows = try session.execute(allEndpoints)
        return try rows.map { rows, row throws(PostgresError) in
            (try Endpoint(rows, row), try EndpointState(rows, row, from: Endpoint.columnCount))
        }
    }

    /// The sorted names of the enabled endpoints.
    ///
    /// - Parameter ids: the endpoints to consider, by ids as texts, as ``SealedRow`` has them.
    package static func enabledNames(
        among ids: [String],
        in session: borrowing Session
    ) throws(PostgresError) -> [String] {
        let names = Statement(
            once: """
                SELECT name FROM siwa.endpoints WHERE endpoint_id::text = ANY ($1) AND status = 'enabled' ORDER BY name
                """
        )
        return try session.execute(names, Binds { $0.append(array: ids) }).decode { (name: String) in name }
    }

    private static let allEndpoints = Statement(
        """
        SELECT \(Endpoint.columns), \(EndpointState.columns)
        FROM siwa.endpoints AS e LEFT JOIN siwa.endpoint_states AS s USING (endpoint_id)
        ORDER BY e.name
        """
    )
}

extension Endpoint {
    /// PostgreSQL's arrays become texts with a line for each element.
    fileprivate static let columns = """
        e.endpoint_id, e.name, e.kind, e.url, array_to_string(e.types, E'\\n'), array_to_string(e.apps, E'\\n'), e.ordering,
        e.concurrency, e.timeout, e.rate,
        array_to_string(ARRAY(SELECT (extract(epoch FROM r) * 1000000)::bigint FROM unnest(e.retries) AS r), E'\\n'),
        e.disable_after, e.signature, array_to_string(e.include, E'\\n'), e.audience, e.subject, e.revoked_as, e.version,
        e.status, e.status_reason, e.status_at, e.created_at, e.revision
        """
    fileprivate static let columnCount = 23

    fileprivate init(_ rows: borrowing Rows, _ row: Int) throws(PostgresError) {
        func lines(_ column: Int) throws(PostgresError) -> [String]? {
            try rows.optionalString(row, column)?.split(separator: "\n").map(String.init)
        }
        var configuration = EndpointConfiguration(name: try rows.value(row, 1), url: try rows.value(row, 3))
        configuration.kind = try rows.value(row, 2)
        configuration.types = try lines(4)
        configuration.apps = try lines(5)
        configuration.ordering = try rows.value(row, 6)
        configuration.concurrency = try rows.value(row, 7)
        configuration.timeout = try rows.value(row, 8)
        configuration.rate = try rows.value(row, 9)
        configuration.retries = (try lines(10) ?? []).compactMap { Int64($0).map { .microseconds($0) } }
        configuration.disableAfter = try rows.value(row, 11)
        configuration.signature = try rows.value(row, 12)
        configuration.include = try lines(13) ?? []
        configuration.audience = try rows.value(row, 14)
        configuration.subject = try rows.value(row, 15)
        configuration.revokedAs = try rows.value(row, 16)
        configuration.version = try rows.value(row, 17)
        self.init(
            id: try rows.value(row, 0),
            configuration: configuration,
            status: try rows.value(row, 18),
            statusReason: try rows.value(row, 19),
            statusAt: try rows.value(row, 20),
            createdAt: try rows.value(row, 21),
            revision: try rows.value(row, 22)
        )
    }
}

extension EndpointState {
    fileprivate static let columns = """
        s.failing_since, s.open_until, s.probe_delay, s.last_success_at, s.last_reason, s.last_http_status, s.last_detail
        """

    fileprivate init(_ rows: borrowing Rows, _ row: Int, from first: Int) throws(PostgresError) {
        self.init(
            failingSince: try rows.value(row, first),
            openUntil: try rows.value(row, first + 1),
            probeDelay: try rows.value(row, first + 2),
            lastSuccessAt: try rows.value(row, first + 3),
            lastReason: try rows.value(row, first + 4),
            lastHTTPStatus: try rows.value(row, first + 5),
            lastDetail: try rows.value(row, first + 6)
        )
    }
}
