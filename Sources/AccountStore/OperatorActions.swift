package import Postgres

/// An action of an operator, for the audit (`siwa.operator_actions`).
package struct OperatorAction: Sendable, Equatable {
    package let operatorName: String
    /// The command, such as `sessions end`.
    package let action: String
    /// An id, or the filter as command-line options.
    package let target: String
    /// The operator's reason.
    package let note: String?
    package let affected: Int

    package init(operatorName: String, action: String, target: String, note: String?, affected: Int) {
        self.operatorName = operatorName
        self.action = action
        self.target = target
        self.note = note
        self.affected = affected
    }
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
}
