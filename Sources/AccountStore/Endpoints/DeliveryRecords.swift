package import Basics
package import Postgres

/// A row of `siwa.deliveries`.
package struct Delivery: Sendable, Equatable {
    package let id: DeliveryID
    package let status: DeliveryStatus
    /// Since the delivery was made, or since an operator retried it.
    package let attempts: Int
    /// nil if it is not attempted any more.
    package let nextAttemptAt: WallTime?
    /// True while an attempt is under way.
    package let isClaimed: Bool
    /// Of the last failed attempt; nil if none failed.
    package let reason: String?
    package let httpStatus: Int?
    package let createdAt: WallTime
    package let firstFailedAt: WallTime?
    /// When it was delivered or discarded.
    package let resolvedAt: WallTime?
    /// The operator who discarded it.
    package let resolvedBy: String?
    package let note: String?

    /// The columns of the properties, in their order, of `siwa.deliveries AS d` and `siwa.endpoints AS e`.
    fileprivate static let columns = """
        e.name, d.position, d.status, d.attempts, d.next_attempt_at, coalesce(\(DeliveryRecords.isClaimed), false), d.reason,
        d.http_status, d.created_at, d.first_failed_at, d.resolved_at, d.resolved_by, d.note
        """
    fileprivate static let columnCount = 13

    fileprivate init(_ rows: borrowing Rows, _ row: Int) throws(PostgresError) {
        id = DeliveryID(endpoint: try rows.value(row, 0), position: try rows.value(row, 1))
        status = try rows.value(row, 2)
        attempts = try rows.value(row, 3)
        nextAttemptAt = try rows.value(row, 4)
        isClaimed = try rows.value(row, 5)
        reason = try rows.value(row, 6)
        httpStatus = try rows.value(row, 7)
        createdAt = try rows.value(row, 8)
        firstFailedAt = try rows.value(row, 9)
        resolvedAt = try rows.value(row, 10)
        resolvedBy = try rows.value(row, 11)
        note = try rows.value(row, 12)
    }
}

package struct DeliveryRecord: Sendable, Equatable {
    package let delivery: Delivery
    package let change: PublishedChange
}

/// A failed attempt: a row of `siwa.delivery_attempts`.
package struct DeliveryAttempt: Sendable, Equatable {
    /// Counted from 1; again from 1 after an operator retried the delivery.
    package let number: Int
    package let attemptedAt: WallTime
    package let duration: Duration
    package let reason: String
    package let httpStatus: Int?
    /// siwad's words.
    package let detail: String
}

package enum DeliveryGrouping: String, Sendable, CaseIterable {
    case endpoint
    /// Of the last failed attempt.
    case reason
    /// Of the change, as in the event catalogue.
    case type
    /// The app group that reported the change.
    case app

    fileprivate var column: String {
        switch self {
        case .endpoint: "e.name"
        case .reason: "d.reason"
        case .type: "c.type"
        case .app: "c.app_id"
        }
    }
}

package struct DeliveryCount: Sendable, Equatable {
    /// nil for deliveries without a reason.
    package let group: String?
    package let pending: Int
    package let retry: Int
    package let dead: Int
    package let discarded: Int
    package let delivered: Int
    /// When the first delivery that waits or is dead was made; nil if there is none.
    package let oldestAt: WallTime?
}

/// How a published change fared at an endpoint.
package struct DeliveryFate: Sendable, Equatable {
    package let endpoint: Endpoint
    /// nil if there is no delivery.
    package let delivery: Delivery?
    /// Whether the filter of the endpoint matches the change at present.
    package let isWanted: Bool
}

/// Reads deliveries for operators.
package enum DeliveryRecords {
    /// The matching deliveries, the latest positions first.
    package static func list(
        _ filter: DeliveryFilter,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [DeliveryRecord] {
        var conditions = Conditions(filter)
        let limit = conditions.bind(limit)
        let statement = Statement(
            once: """
                SELECT \(Delivery.columns), \(PublishedChange.columns)
                FROM siwa.deliveries AS d
                JOIN siwa.endpoints AS e USING (endpoint_id)
                JOIN siwa.changes AS c ON c.position = d.position
                WHERE \(conditions.sql)
                ORDER BY d.position DESC, e.name
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).map { rows, row throws(PostgresError) in
            DeliveryRecord(
                delivery: try Delivery(rows, row),
                change: try PublishedChange(rows, row, from: Delivery.columnCount)
            )
        }
    }

    /// The failed attempts at a delivery, in order.
    package static func attempts(
        at id: DeliveryID,
        in session: borrowing Session
    ) throws(PostgresError) -> [DeliveryAttempt] {
        try session.execute(
            once: """
                SELECT a.attempt, a.attempted_at, a.duration, a.reason, a.http_status, a.detail
                FROM siwa.delivery_attempts AS a JOIN siwa.endpoints AS e USING (endpoint_id)
                WHERE e.name = $1 AND a.position = $2
                ORDER BY a.attempt_id
                """,
            id.endpoint,
            id.position
        ).decode(DeliveryAttempt.init)
    }

    /// The numbers of matching deliveries by group, the group with the most dead ones first.
    package static func count(
        _ filter: DeliveryFilter,
        by grouping: DeliveryGrouping,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [DeliveryCount] {
        var conditions = Conditions(filter)
        let limit = conditions.bind(limit)
        let counts = DeliveryStatus.allCases.map { "count(*) FILTER (WHERE d.status = '\($0.rawValue)')" }
        let needsChange = filter.needsChange || [.type, .app].contains(grouping)
        let statement = Statement(
            once: """
                SELECT
                    \(grouping.column), \(counts.joined(separator: ", ")),
                    min(d.created_at) FILTER (WHERE d.status IN ('pending', 'retry', 'dead'))
                FROM siwa.deliveries AS d
                JOIN siwa.endpoints AS e USING (endpoint_id)
                \(needsChange ? "JOIN siwa.changes AS c ON c.position = d.position" : "")
                WHERE \(conditions.sql)
                GROUP BY 1
                ORDER BY 4 DESC, 2 DESC, 1
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(DeliveryCount.init)
    }

    /// How a change fared at each endpoint, by name.
    package static func fates(
        of change: PublishedChange,
        in session: borrowing Session
    ) throws(PostgresError) -> [DeliveryFate] {
        let rows = try session.execute(
            once: """
                SELECT \(Delivery.columns)
                FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id)
                WHERE d.position = $1
                """,
            change.position
        ).map { rows, row throws(PostgresError) in try Delivery(rows, row) }
        let deliveries = Dictionary(rows.map { ($0.id.endpoint, $0) }) { first, _ in first }
        let wanting = try session.execute(
            once: """
                SELECT e.name FROM siwa.endpoints AS e
                WHERE siwa.endpoint_wants(e.types, e.apps, $1, $2, $3, ARRAY(
                    SELECT k.app_id FROM siwa.clients AS k WHERE k.team_id = $4
                ))
                """,
            change.type,
            change.scope,
            change.app,
            change.team
        ).decode { (name: String) in name }
        return try Endpoints.all(in: session).map { endpoint, _ in
            DeliveryFate(
                endpoint: endpoint,
                delivery: deliveries[endpoint.name],
                isWanted: wanting.contains(endpoint.name)
            )
        }
    }
}

extension PublishedChange {
    /// Reads the columns of `siwa.changes` in their order.
    init(_ rows: borrowing Rows, _ row: Int, from first: Int) throws(PostgresError) {
        self.init(
            position: try rows.value(row, first),
            publishedAt: try rows.value(row, first + 1),
            type: try rows.value(row, first + 2),
            scope: try rows.value(row, first + 3),
            team: try rows.value(row, first + 4),
            subject: try rows.value(row, first + 5),
            app: try rows.value(row, first + 6),
            facet: try rows.value(row, first + 7),
            fromState: try rows.value(row, first + 8),
            toState: try rows.value(row, first + 9),
            eventTime: try rows.value(row, first + 10),
            recordedAt: try rows.value(row, first + 11),
            notificationID: try rows.value(row, first + 12),
            sessionsEnded: try rows.value(row, first + 13),
            sessionID: try rows.value(row, first + 14),
            accountID: try rows.value(row, first + 15),
            changeID: try rows.value(row, first + 16)
        )
    }
}
