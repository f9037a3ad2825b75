/// A connection lent to a synchronous closure, on the connection's own thread: nothing can be awaited while it is held,
/// and it cannot be kept.
public struct Session: ~Copyable {
    private let link: Link

    init(_ link: Link) {
        self.link = link
    }

    /// Executes one statement. In a transaction, a statement that fails has ended the transaction: let the error pass.
    ///
    /// - Throws: `server` for what PostgreSQL refused, `timedOut`, `cancelled`, `connectionLost`, `usage`.
    public func execute(_ statement: Statement, _ binds: Binds = Binds()) throws(PostgresError) -> Rows {
        Rows(try link.execute(statement, binds))
    }

    /// Executes statements without parameters, separated by semicolons, and drops what they return. Outside a
    /// transaction they form one of their own, unless they hold transaction commands.
    ///
    /// - Throws: as `execute(_:_:)`.
    public func execute(script: String) throws(PostgresError) {
        _ = try link.execute(script: script)
    }
}
