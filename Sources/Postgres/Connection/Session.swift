/// A connection lent to a synchronous closure, on the connection's own thread. The closure cannot keep it, or await
/// anything while it has it.
package struct Session: ~Copyable {
    private let connection: BlockingConnection

    init(_ connection: BlockingConnection) {
        self.connection = connection
    }

    package var endpoint: ServerEndpoint { connection.handle.endpoint }

    /// Executes one statement. In a transaction, a failed statement ends the transaction: do not catch its error.
    ///
    /// - Throws: `server` if PostgreSQL refused the statement, `timedOut`, `cancelled`, `connectionLost`, `usage`.
    package func execute(_ statement: Statement, _ binds: Binds) throws(PostgresError) -> Rows {
        Rows(try connection.execute(statement, binds))
    }

    package func execute<each Value: PostgresValue>(
        _ statement: Statement,
        _ values: repeat each Value
    ) throws(PostgresError) -> Rows {
        try execute(statement, Binds(repeat each values))
    }

    /// Executes a statement that is parsed and planned for these values, so that nothing of it stays on the server.
    package func execute<each Value: PostgresValue>(
        once sql: String,
        _ values: repeat each Value
    ) throws(PostgresError) -> Rows {
        try execute(Statement(once: sql), Binds(repeat each values))
    }

    /// Executes statements one after another, each in its own transaction. The next statement is sent while the server
    /// commits the one before it, so that the server never waits in between.
    ///
    /// - Parameters:
    ///   - statements: all statements that `first` and `next` use, with binds of the same types.
    ///   - next: returns the next statement, or nil if there is none at present. Called after each execution, and again
    ///     after its commit if it returned nil. Returning a text with a NUL, or a statement that is not in `statements`,
    ///     is a programming error.
    ///   - committed: receives the rows of an execution once it is committed.
    /// - Throws: as `execute(_:_:)`. Executions passed to `committed` are committed; the outcome of any other that was
    ///   sent is unknown. `usage` inside a transaction, or for a statement made by `init(once:)`.
    package func executePipelined(
        _ statements: [Statement],
        first: BoundStatement,
        next: () -> BoundStatement?,
        committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try connection.executePipelined(statements, first: first, next: next, committed: committed)
    }

    /// Executes statements without parameters, separated by semicolons, and ignores their rows. Outside a transaction
    /// they form one of their own, unless they contain transaction commands.
    package func execute(script: String) throws(PostgresError) {
        _ = try connection.execute(script: script)
    }

    /// Runs `body` in a savepoint: if it throws, its changes are undone, and the transaction can continue.
    ///
    /// - Throws: what `body` throws. After a connection error the transaction cannot continue.
    package func savepoint<R>(
        _ body: (borrowing Session) throws(PostgresError) -> R
    ) throws(PostgresError) -> R {
        try inSavepoint("RELEASE SAVEPOINT part", body)
    }

    /// Runs `body` in a savepoint and always undoes its changes, to find out what it would do.
    package func dryRun<R>(
        _ body: (borrowing Session) throws(PostgresError) -> R
    ) throws(PostgresError) -> R {
        try inSavepoint(Self.undo, body)
    }

    private static let undo = "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part"

    private func inSavepoint<R>(
        _ end: String,
        _ body: (borrowing Session) throws(PostgresError) -> R
    ) throws(PostgresError) -> R {
        try execute(script: "SAVEPOINT part")
        let result: R
        do {
            result = try body(self)
        } catch {
            guard !error.isConnectionError else { throw error }
            try execute(script: Self.undo)
            throw error
        }
        try execute(script: end)
        return result
    }
}

/// The transaction isolation levels in use.
package enum IsolationLevel: String, Sendable, CaseIterable {
    case readCommitted = "READ COMMITTED"
    case repeatableRead = "REPEATABLE READ"
}
