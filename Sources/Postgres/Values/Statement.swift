import Synchronization

/// One SQL statement with `$1`, `$2` … for its binds.
///
/// Make it once and keep it, in a `static let`: a connection prepares it at its first execution, and finds it again by
/// identity rather than by text. Use ``init(once:)`` for text composed at run time.
package struct Statement: Sendable {
    private static let lastID = Atomic<Int>(0)

    package let sql: String
    /// The key of the prepared statement on each connection; nil if it is parsed at every execution.
    let id: Int?

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

package struct BoundStatement: Sendable {
    let statement: Statement
    let binds: Binds

    package init(_ statement: Statement, _ binds: Binds) {
        self.statement = statement
        self.binds = binds
    }
}
