package import AppleTokens
package import Basics
package import Postgres

/// A row of `siwa.dead_letters`, without the body.
package struct KeptDeadLetter: Sendable, Equatable {
    package let id: Int64
    /// When it was first received, by the daemon's clock.
    package let receivedAt: WallTime
    /// When it was last received while open.
    package let lastReceivedAt: WallTime
    /// How often it was received while open, at least: repeats that a daemon remembers are not counted.
    package let deliveries: Int
    /// The finding of the last failed attempt, as stored.
    package let rawReason: String
    /// The finding as a sentence.
    package let detail: String
    package let status: DeadLetterStatus
    /// How often siwad tried to process it, at receipt and at each replay.
    package let attempts: Int
    /// `jti`, if the token has it; likewise `aud`, `sub` and `type` below.
    package let notificationID: String?
    package let audience: String?
    package let subject: String?
    package let eventType: String?
    /// The key that verified it; nil if it was never verified.
    package let verifiedKeyID: String?
    package let verifiedAt: WallTime?
    package let lastFailedAt: WallTime?
    package let lastFailedBy: String?
    package let lastFailedByRole: String?
    /// When it was replayed successfully or discarded.
    package let resolvedAt: WallTime?
    package let resolvedBy: String?
    package let resolvedByRole: String?
    /// The operator's reason.
    package let note: String?
    /// The effect of the replay: `applied`, `superseded`, `unchanged` or `duplicate`.
    package let outcome: String?

    /// nil if this siwad does not know the reason.
    package var reason: DeadLetterReason? { DeadLetterReason(rawValue: rawReason) }

    /// The columns of the properties, in their order.
    fileprivate static let columns = """
        id, received_at, last_received_at, deliveries, reason, detail, status, attempts, jti, aud, sub, event_type,
        verified_kid, verified_at, last_failed_at, last_failed_by, last_failed_by_role, resolved_at, resolved_by,
        resolved_by_role, note, outcome
        """
    fileprivate static let columnCount = 22
}

package struct DeadLetterAttempt: Sendable, Equatable {
    /// Counted from 1, the attempt at receipt.
    package let number: Int
    package let attemptedAt: WallTime
    /// The operator and the role of the replay; nil at receipt.
    package let operatorName: String?
    package let databaseRole: String?
    package let reason: String
    package let detail: String
}

package struct DeadLetterRecord: Sendable, Equatable {
    package let letter: KeptDeadLetter
    /// The compact JWS, or the request's body that contained it; empty after erasure.
    package let body: [UInt8]
    /// True if the database role may not read ``body``, which is then empty.
    package let isBodyHidden: Bool
    /// The failed attempts before the last one, in order.
    package let earlierAttempts: [DeadLetterAttempt]
}

package enum DeadLetterGrouping: String, Sendable, CaseIterable {
    case reason
    /// `aud` of the token.
    case app
    /// `type` in Apple's spelling.
    case type

    fileprivate var column: String {
        switch self {
        case .reason: "reason"
        case .app: "aud"
        case .type: "event_type"
        }
    }
}

package struct DeadLetterCount: Sendable, Equatable {
    /// The reason, app or type; nil if the token does not have it.
    package let group: String?
    package let open: Int
    package let replayed: Int
    package let discarded: Int
    package let oldestOpenAt: WallTime?
    /// When the latest letter of any status was received.
    package let newestAt: WallTime
}

/// The letters that match a filter at the start of a run.
package struct DeadLetterSelection: Sendable, Equatable {
    package let counts: [DeadLetterReason: Int]
    package let firstID: Int64
    /// The highest id. Letters that arrive later are not part of the run.
    package let lastID: Int64

    package var total: Int { counts.values.reduce(0, +) }
}

extension DeadLetters {
    /// The matching letters, latest first.
    package static func list(
        _ filter: DeadLetterFilter,
        status: DeadLetterStatus?,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [KeptDeadLetter] {
        try list(Conditions(filter, status: status), limit: limit, in: session)
    }

    /// The open letters about a person, latest first. A letter for an app of another team is about a different person with
    /// the same `sub`.
    package static func open(
        about subject: Subject,
        of team: TeamID,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [KeptDeadLetter] {
        var conditions = Conditions(DeadLetterFilter(subject: subject.rawValue), status: .open)
        conditions.add("NOT EXISTS (SELECT FROM siwa.clients AS k WHERE k.client_id = aud AND k.team_id <> ?)", team)
        return try list(conditions, limit: limit, in: session)
    }

    private static func list(
        _ conditions: Conditions,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [KeptDeadLetter] {
        var conditions = conditions
        let limit = conditions.bind(limit)
        // Selects the ids first, because an index-only scan may find them, and then the rows.
        let statement = Statement(
            once: """
                SELECT \(KeptDeadLetter.columns) FROM siwa.dead_letters
                WHERE id = ANY (ARRAY(
                    SELECT id FROM siwa.dead_letters WHERE \(conditions.sql) ORDER BY id DESC LIMIT \(limit)
                ))
                ORDER BY id DESC
                """
        )
        return try session.execute(statement, conditions.binds).decode(KeptDeadLetter.init)
    }

    /// One letter with its body and attempts; nil if there is no letter with this id.
    package static func find(id: Int64, in session: borrowing Session) throws(PostgresError) -> DeadLetterRecord? {
        let isBodyHidden = try !session.execute(
            once: "SELECT has_column_privilege('siwa.dead_letters', 'body', 'SELECT')"
        ).bool(0, 0)
        let body = isBodyHidden ? "''::bytea" : "body"
        let rows = try session.execute(
            once: "SELECT \(KeptDeadLetter.columns), \(body) FROM siwa.dead_letters WHERE id = $1",
            id
        )
        guard let letter = try rows.decode(KeptDeadLetter.init).first else { return nil }
        let attempts = try session.execute(
            once: """
                SELECT attempt, attempted_at, operator, database_role, reason, detail FROM siwa.dead_letter_attempts
                WHERE letter_id = $1
                ORDER BY attempt
                """,
            id
        )
        return DeadLetterRecord(
            letter: letter,
            body: try rows.bytes(0, KeptDeadLetter.columnCount),
            isBodyHidden: isBodyHidden,
            earlierAttempts: try attempts.decode(DeadLetterAttempt.init)
        )
    }

    /// The numbers of matching letters by group, the group with most open letters first.
    package static func count(
        _ filter: DeadLetterFilter,
        status: DeadLetterStatus?,
        by grouping: DeadLetterGrouping,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [DeadLetterCount] {
        var conditions = Conditions(filter, status: status)
        let limit = conditions.bind(limit)
        let statement = Statement(
            once: """
                SELECT
                    \(grouping.column),
                    count(*) FILTER (WHERE status = 'open'),
                    count(*) FILTER (WHERE status = 'replayed'),
                    count(*) FILTER (WHERE status = 'discarded'),
                    min(received_at) FILTER (WHERE status = 'open'),
                    max(received_at)
                FROM siwa.dead_letters
                WHERE \(conditions.sql)
                GROUP BY 1
                ORDER BY 2 DESC, 6 DESC, 1
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(DeadLetterCount.init)
    }

    /// The letters that match now; nil if there are none.
    package static func select(
        _ filter: DeadLetterFilter,
        status: DeadLetterStatus,
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterSelection? {
        let conditions = Conditions(filter, status: status)
        let matching = "SELECT reason, id FROM siwa.dead_letters WHERE \(conditions.sql)"
        let first = filter.limit.map { " ORDER BY id LIMIT \($0)" } ?? ""
        let statement = Statement(
            once: "SELECT reason, count(*), min(id), max(id) FROM (\(matching)\(first)) AS m GROUP BY reason"
        )
        let rows = try session.execute(statement, conditions.binds)
        var counts: [DeadLetterReason: Int] = [:]
        var (firstID, lastID) = (Int64.max, Int64.min)
        for row in 0..<rows.count {
            guard let reason = DeadLetterReason(rawValue: try rows.string(row, 0)) else { continue }
            counts[reason] = try rows.value(row, 1)
            firstID = min(firstID, try rows.int64(row, 2))
            lastID = max(lastID, try rows.int64(row, 3))
        }
        return counts.isEmpty ? nil : DeadLetterSelection(counts: counts, firstID: firstID, lastID: lastID)
    }
}
