package import AppleTokens
package import Postgres

/// By what dead letters are counted.
package enum DeadLetterGrouping: String, Sendable, CaseIterable {
    /// Why they were kept.
    case reason
    /// `aud`.
    case app
    /// `type` as Apple spelt it.
    case type

    fileprivate var column: String {
        switch self {
        case .reason: "reason"
        case .app: "aud"
        case .type: "event_type"
        }
    }
}

/// How many dead letters there are of one group.
package struct DeadLetterCount: Sendable, Equatable {
    /// The reason, app or type; nil where it could not be read.
    package let group: String?
    /// Those that wait for an operator.
    package let open: Int
    /// Those that were processed after all.
    package let replayed: Int
    /// Those that an operator discarded.
    package let discarded: Int
    /// When the oldest open one was received.
    package let oldestOpenAt: WallTime?
    /// When the last one of all was received.
    package let newestAt: WallTime
}

/// What a filter matches before anything is done with it.
package struct DeadLetterSelection: Sendable, Equatable {
    /// How many, by reason.
    package let counts: [DeadLetterReason: Int]
    /// The lowest id.
    package let firstID: Int64
    /// The highest id: what comes later isn't part of a run.
    package let lastID: Int64

    /// How many in all.
    package var total: Int { counts.values.reduce(0, +) }
}

extension DeadLetters {
    /// The letters that match, the one received last first.
    ///
    /// - Parameter status: nil: any.
    package static func list(
        _ filter: DeadLetterFilter,
        status: DeadLetterStatus?,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [KeptDeadLetter] {
        try list(DeadLetterConditions(filter, status: status), limit: limit, in: session)
    }

    /// The open letters about a person, the one received last first. One for an app of another team is about somebody
    /// else.
    package static func open(
        about subject: Subject,
        of team: TeamID,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [KeptDeadLetter] {
        var conditions = DeadLetterConditions(DeadLetterFilter(subject: subject.rawValue), status: .open)
        conditions.add("NOT EXISTS (SELECT FROM siwa.clients AS k WHERE k.client_id = aud AND k.team_id <> ?)") {
            $0.append(team.rawValue)
        }
        return try list(conditions, limit: limit, in: session)
    }

    private static func list(
        _ conditions: DeadLetterConditions,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [KeptDeadLetter] {
        var conditions = conditions
        let tail = conditions.parameter(in: "ORDER BY id DESC LIMIT ?") { $0.append(Int64(clamping: limit)) }
        // First the ids, from an index alone where it has what the filter asks for, then their rows.
        let statement = Statement(
            once: """
                SELECT \(KeptDeadLetter.columns) FROM siwa.dead_letters
                WHERE id = ANY (ARRAY(SELECT id FROM siwa.dead_letters WHERE \(conditions.sql) \(tail)))
                ORDER BY id DESC
                """
        )
        return try session.execute(statement, conditions.binds).map { (rows, row) throws(PostgresError) in
            try KeptDeadLetter(rows, row)
        }
    }

    /// Everything about one letter; nil if there is none of that number.
    package static func find(id: Int64, in session: borrowing Session) throws(PostgresError) -> DeadLetterRecord? {
        let isBodyHidden = try !session.execute(mayReadBodies).bool(0, 0)
        let rows = try session.execute(isBodyHidden ? findHidden : find, Binds { $0.append(id) })
        guard !rows.isEmpty else { return nil }
        let attempts = try session.execute(attempts, Binds { $0.append(id) })
            .map { (rows, row) throws(PostgresError) in
                DeadLetterAttempt(
                    number: Int(try rows.int32(row, 0)),
                    attemptedAt: try rows.time(row, 1),
                    operatorName: try rows.optionalString(row, 2),
                    databaseRole: try rows.optionalString(row, 3),
                    reason: try rows.string(row, 4),
                    detail: try rows.string(row, 5)
                )
            }
        return DeadLetterRecord(
            letter: try KeptDeadLetter(rows, 0),
            body: try rows.bytes(0, bodyColumn),
            isBodyHidden: isBodyHidden,
            earlierAttempts: attempts
        )
    }

    /// How many letters match, by group, the group with most open ones first.
    package static func count(
        _ filter: DeadLetterFilter,
        status: DeadLetterStatus?,
        by grouping: DeadLetterGrouping,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [DeadLetterCount] {
        var conditions = DeadLetterConditions(filter, status: status)
        let tail = conditions.parameter(in: "ORDER BY 2 DESC, 6 DESC, 1 LIMIT ?") {
            $0.append(Int64(clamping: limit))
        }
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
                \(tail)
                """
        )
        return try session.execute(statement, conditions.binds).map { (rows, row) throws(PostgresError) in
            DeadLetterCount(
                group: try rows.optionalString(row, 0),
                open: Int(try rows.int64(row, 1)),
                replayed: Int(try rows.int64(row, 2)),
                discarded: Int(try rows.int64(row, 3)),
                oldestOpenAt: try rows.optionalTime(row, 4),
                newestAt: try rows.time(row, 5)
            )
        }
    }

    /// What matches a filter at present; nil: nothing.
    package static func select(
        _ filter: DeadLetterFilter,
        status: DeadLetterStatus,
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterSelection? {
        let conditions = DeadLetterConditions(filter, status: status)
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
            counts[reason] = Int(try rows.int64(row, 1))
            firstID = min(firstID, try rows.int64(row, 2))
            lastID = max(lastID, try rows.int64(row, 3))
        }
        return counts.isEmpty ? nil : DeadLetterSelection(counts: counts, firstID: firstID, lastID: lastID)
    }

    private static let bodyColumn = 22

    private static let mayReadBodies = Statement(
        once: "SELECT has_column_privilege('siwa.dead_letters', 'body', 'SELECT')"
    )
    private static let find = Statement(
        once: "SELECT \(KeptDeadLetter.columns), body FROM siwa.dead_letters WHERE id = $1"
    )
    private static let findHidden = Statement(
        once: "SELECT \(KeptDeadLetter.columns), ''::bytea FROM siwa.dead_letters WHERE id = $1"
    )

    private static let attempts = Statement(
        once: """
            SELECT attempt, attempted_at, operator, database_role, reason, detail FROM siwa.dead_letter_attempts
            WHERE letter_id = $1
            ORDER BY attempt
            """
    )
}
