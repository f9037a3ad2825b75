package import Basics
package import Postgres

/// An action of an operator, for the audit (`siwa.operator_actions`).
package struct OperatorAction: Sendable, Equatable {
    /// Every value of ``action``. A command that changes something adds its own.
    package static let commands = [
        "sessions end", "clients remove", "sealing rotate", "dead-letters replay", "dead-letters discard",
        "dead-letters reopen", "deliveries retry", "deliveries discard", "endpoints add", "endpoints edit",
        "endpoints apply", "endpoints rotate", "endpoints pause", "endpoints resume", "endpoints seek",
        "endpoints remove",
    ]

    package let operatorName: String
    /// The command, such as `sessions end`.
    package let action: String
    /// An id, or the filter as command-line options.
    package let target: String
    /// The operator's reason.
    package let note: String?
    package let affected: Int

    package init(operatorName: String, action: String, target: String, note: String?, affected: Int) {
        // Otherwise, help and completions would omit it.
        assert(Self.commands.contains(action), "\(action) is missing in OperatorAction.commands")
        self.operatorName = operatorName
        self.action = action
        self.target = target
        self.note = note
        self.affected = affected
    }

    /// - Parameter target: nil: the same.
    package func affecting(_ number: Int, target: String? = nil) -> OperatorAction {
        OperatorAction(
            operatorName: operatorName,
            action: action,
            target: target ?? self.target,
            note: note,
            affected: number
        )
    }
}

/// A row of `siwa.operator_actions`.
package struct RecordedAction: Sendable, Equatable {
    package let id: Int64
    /// When its transaction started, by the database's clock.
    package let recordedAt: WallTime
    /// `siwad` for the daemon.
    package let operatorName: String
    package let databaseRole: String
    package let action: String
    package let target: String
    package let note: String?
    package let affected: Int

    /// The columns of the properties, in their order.
    fileprivate static let columns = "action_id, recorded_at, operator, database_role, action, target, note, affected"
}

/// Conditions on operators' actions; nil matches everything.
package struct ActionFilter: Sendable {
    /// Empty matches every id.
    package var ids: [Int64] = []
    package var operatorName: String?
    /// The command, such as `sessions end`.
    package var action: String?
    /// Recorded at or after.
    package var since: WallTime?
    /// Recorded before.
    package var until: WallTime?
    package var limit = 50

    package init() {}
}

/// The audit of operators' actions. The database refuses to change or delete its rows.
package enum OperatorActions {
    /// Records an action. Call it in the transaction that performs the action.
    package static func record(_ action: OperatorAction, in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(
            once: """
                INSERT INTO siwa.operator_actions (operator, action, target, note, affected)
                VALUES ($1, $2, $3, $4, $5)
                """,
            action.operatorName,
            action.action,
            action.target,
            action.note,
            action.affected
        )
    }

    /// The matching actions, latest first.
    package static func list(
        _ filter: ActionFilter,
        in session: borrowing Session
    ) throws(PostgresError) -> [RecordedAction] {
        var conditions = Conditions()
        if !filter.ids.isEmpty { conditions.add("action_id", anyOf: filter.ids) }
        conditions.add("operator = ?", filter.operatorName)
        conditions.add("action = ?", filter.action)
        conditions.add("recorded_at >= ?", filter.since)
        conditions.add("recorded_at < ?", filter.until)
        return try list(conditions, limit: filter.limit, in: session)
    }

    /// The actions that ended sessions at one of these times.
    static func sessionEnds(
        at times: [WallTime],
        in session: borrowing Session
    ) throws(PostgresError) -> [RecordedAction] {
        var conditions = Conditions()
        conditions.add("action = ?", sessionsEnd)
        conditions.add("recorded_at", anyOf: times)
        return try list(conditions, limit: .max, in: session)
    }

    static let sessionsEnd = "sessions end"

    private static func list(
        _ conditions: Conditions,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [RecordedAction] {
        var conditions = conditions
        let limit = conditions.bind(limit)
        let statement = Statement(
            once: """
                SELECT \(RecordedAction.columns) FROM siwa.operator_actions
                WHERE \(conditions.sql)
                ORDER BY action_id DESC
                LIMIT \(limit)
                """
        )
        return try session.execute(statement, conditions.binds).decode(RecordedAction.init)
    }
}
