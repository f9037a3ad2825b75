/// A connection lent to a synchronous closure, on the connection's own thread: nothing can be awaited while it is held,
/// and it cannot be kept.
package struct Session: ~Copyable {
    private let link: Link

    init(_ link: Link) {
        self.link = link
    }

    /// Where the connection leads.
    package var route: Route { link.handle.route }

    /// Executes one statement. In a transaction, a statement that fails has ended the transaction: let the error pass.
    ///
    /// - Throws: `server` for what PostgreSQL refused, `timedOut`, `cancelled`, `connectionLost`, `usage`.
    package func execute(_ statement: Statement, _ binds: Binds = Binds()) throws(PostgresError) -> Rows {
        Rows(try link.execute(statement, binds))
    }

    /// Executes one of some statements after another, each a transaction of its own. What follows is sent while what comes
    /// before it is being committed, so that the server waits for nothing in between.
    ///
    /// - Parameters:
    ///   - statements: those that may come, all with values of the same types.
    ///   - next: what follows, asked for once what is before it is executed, and once more when that is committed; nil:
    ///     nothing at present. A text with a NUL, or a statement that is not among those, is the caller's mistake.
    ///   - committed: takes what an execution returned, once that is committed.
    /// - Throws: as `execute(_:_:)`, what one of them failed with. What was reported committed is; of what was sent and
    ///   not reported, nothing is known. `usage` inside a transaction, or for a statement that isn't kept prepared.
    package func execute(
        _ statements: [Statement],
        inTurn first: Execution,
        next: () -> Execution?,
        committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try link.execute(statements, inTurn: first, next: next, committed: committed)
    }

    /// Executes statements without parameters, separated by semicolons, and drops what they return. Outside a
    /// transaction they form one of their own, unless they hold transaction commands.
    ///
    /// - Throws: as `execute(_:_:)`.
    package func execute(script: String) throws(PostgresError) {
        _ = try link.execute(script: script)
    }
}
