package import Postgres

/// An operator's decision about deliveries.
package enum DeliveryVerb: String, Sendable, CaseIterable {
    /// They are attempted again as if never attempted.
    case retry
    /// They are not attempted any more.
    case discard

    /// The statuses that the decision can change.
    package var statuses: [DeliveryStatus] {
        switch self {
        case .retry: [.dead, .retry, .discarded, .delivered]
        case .discard: [.dead, .retry, .pending]
        }
    }

    package var newStatus: DeliveryStatus {
        switch self {
        case .retry: .pending
        case .discard: .discarded
        }
    }
}

/// The place of a delivery in the order in which a run goes through them.
package struct DeliveryKey: Sendable, Equatable {
    package let endpoint: Int32
    package let position: Int64

    package init(endpoint: Int32, position: Int64) {
        self.endpoint = endpoint
        self.position = position
    }
}

/// The deliveries that matched at the start of a run.
package struct DeliverySelection: Sendable, Equatable {
    package struct Group: Sendable, Hashable {
        package let endpoint: String
        package let status: DeliveryStatus
        package let reason: String?
    }

    package let counts: [Group: Int]
    package let last: DeliveryKey

    package var total: Int { counts.values.reduce(0, +) }
}

/// Carries out the decisions of operators about deliveries.
package enum DeliveryDecisions {
    package struct Batch: Sendable, Equatable {
        /// The deliveries that were changed.
        package let ids: [DeliveryID]
        /// nil if none was left.
        package let last: DeliveryKey?
    }

    /// The deliveries that match now; nil if there are none.
    package static func select(
        _ filter: DeliveryFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> DeliverySelection? {
        let conditions = Conditions(filter)
        let statement = Statement(
            once: """
                SELECT e.name, d.status, d.reason, count(*), max(d.endpoint_id), max(d.position)
                FROM \(tables(filter))
                WHERE \(conditions.sql)
                GROUP BY d.endpoint_id, e.name, d.status, d.reason
                """
        )
        var counts: [DeliverySelection.Group: Int] = [:]
        var last = DeliveryKey(endpoint: 0, position: 0)
        let rows = try session.execute(statement, conditions.binds)
        for row in 0..<rows.count {
            let group = DeliverySelection.Group(
                endpoint: try rows.value(row, 0),
                status: try rows.value(row, 1),
                reason: try rows.value(row, 2)
            )
            counts[group] = try rows.value(row, 3)
            let (endpoint, position): (Int32, Int64) = (try rows.value(row, 4), try rows.value(row, 5))
            if (endpoint, position) > (last.endpoint, last.position) {
                last = DeliveryKey(endpoint: endpoint, position: position)
            }
        }
        return counts.isEmpty ? nil : DeliverySelection(counts: counts, last: last)
    }

    /// Decides about the next deliveries that match. Deliveries that another transaction changes are left alone, and so is,
    /// for a retry, a delivery whose attempt is under way. The outcome of an attempt at a discarded delivery is ignored.
    package static func decide(
        _ verb: DeliveryVerb,
        _ filter: DeliveryFilter,
        after: DeliveryKey,
        through: DeliveryKey,
        limit: Int,
        by operatorName: String,
        note: String,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Batch {
        var conditions = Conditions(filter)
        let bounds = (from: place(after, &conditions), to: place(through, &conditions))
        conditions.add("(d.endpoint_id, d.position) > \(bounds.from)")
        conditions.add("(d.endpoint_id, d.position) <= \(bounds.to)")
        let limit = conditions.bind(limit)
        let assignments: String
        switch verb {
        case .retry:
            conditions.add("(d.claimed_until IS NULL OR NOT \(DeliveryRecords.isClaimed))")
            assignments = DeliveryRecords.begun
        case .discard:
            let (name, note) = (conditions.bind(operatorName), conditions.bind(note))
            assignments = """
                status = 'discarded', next_attempt_at = NULL, claim = NULL, claimed_until = NULL, resolved_at = now(),
                resolved_by = \(name), note = \(note)
                """
        }
        let statement = Statement(
            once: """
                WITH next AS MATERIALIZED (
                    SELECT d.endpoint_id, d.position, e.name FROM \(tables(filter))
                    WHERE \(conditions.sql)
                    ORDER BY d.endpoint_id, d.position LIMIT \(limit) FOR UPDATE OF d SKIP LOCKED
                ),
                changed AS (
                    UPDATE siwa.deliveries AS d SET \(assignments)
                    FROM next AS n WHERE d.endpoint_id = n.endpoint_id AND d.position = n.position
                )
                SELECT endpoint_id, position, name FROM next ORDER BY endpoint_id, position
                """
        )
        let changed = try transaction.execute(statement, conditions.binds).decode {
            (endpoint: Int32, position: Int64, name: String) in
            (
                key: DeliveryKey(endpoint: endpoint, position: position),
                id: DeliveryID(endpoint: name, position: position)
            )
        }
        if verb == .retry, !changed.isEmpty { try Endpoints.notify(in: transaction) }
        return Batch(ids: changed.map(\.id), last: changed.last?.key)
    }

    private static func place(_ key: DeliveryKey, _ conditions: inout Conditions) -> String {
        "(\(conditions.bind(key.endpoint)), \(conditions.bind(key.position)))"
    }

    private static func tables(_ filter: DeliveryFilter) -> String {
        "siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id)"
            + (filter.needsChange ? " JOIN siwa.changes AS c ON c.position = d.position" : "")
    }
}

extension DeliveryRecords {
    /// As in `siwa.claim_deliveries`: a claim that ends later was made while the database's clock was ahead.
    static let isClaimed = "d.claimed_until BETWEEN now() AND now() + interval '130 s'"

    /// Assignments that make a delivery due as if it had never been attempted. It is pending, so that the order of the changes
    /// of its person is kept as for any other: later ones wait for its first attempt. `siwa.delivery_attempts` keeps the
    /// earlier attempts.
    static let begun = """
        status = 'pending', attempts = 0, next_attempt_at = now(), claim = NULL, claimed_until = NULL, reason = NULL,
        http_status = NULL, first_failed_at = NULL, resolved_at = NULL, resolved_by = NULL, note = NULL
        """
}
