package import Postgres

/// What an operator did, for the audit (`siwa.operator_actions`).
package struct OperatorAction: Sendable, Equatable {
    /// Who did it.
    package let operatorName: String
    /// The command.
    package let action: String
    /// An id, or the filter as given.
    package let target: String
    /// Why, in the operator's words.
    package let note: String?
    /// How many rows it changed.
    package let affected: Int

    /// An action.
    package init(operatorName: String, action: String, target: String, note: String?, affected: Int) {
        self.operatorName = operatorName
        self.action = action
        self.target = target
        self.note = note
        self.affected = affected
    }
}

/// The audit of operators' actions; the database refuses to change or delete what is in it.
package enum OperatorActions {
    /// Writes an action down, in the transaction that does it.
    package static func record(_ action: OperatorAction, in transaction: borrowing Session) throws(PostgresError) {
        _ = try transaction.execute(
            record,
            Binds {
                $0.append(action.operatorName)
                $0.append(action.action)
                $0.append(action.target)
                $0.append(action.note)
                $0.append(Int64(action.affected))
            }
        )
    }

    private static let record = Statement(
        once: "INSERT INTO siwa.operator_actions (operator, action, target, note, affected) VALUES ($1, $2, $3, $4, $5)"
    )
}
