/// How much a transaction sees of others that run beside it.
package enum IsolationLevel: String, Sendable, CaseIterable {
    /// Each statement sees what was committed before it began.
    case readCommitted = "READ COMMITTED"
    /// The whole transaction sees what was committed before its first statement.
    case repeatableRead = "REPEATABLE READ"
}
