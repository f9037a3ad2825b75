import Synchronization

/// One SQL statement with `$1`, `$2` … for its binds.
///
/// Make it once and keep it (a `static let`): a connection prepares it when it first executes it, and finds it again by
/// the statement's identity rather than by its text. Text put together at run time belongs in ``init(once:)``.
package struct Statement: Sendable {
    private static let lastID = Atomic<Int>(0)

    /// The text of the statement.
    package let sql: String
    /// What a connection keeps the prepared statement under; nil: it is parsed at every execution.
    let id: Int?

    /// A statement that each connection prepares once.
    package init(_ sql: String) {
        self.sql = sql
        self.id = Self.lastID.add(1, ordering: .relaxed).newValue
    }

    /// A statement that is parsed and planned at every execution, so that nothing of it stays on the server.
    package init(once sql: String) {
        self.sql = sql
        self.id = nil
    }
}
