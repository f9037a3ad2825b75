extension Session {
    /// Runs `body` as a part of the transaction that may fail by itself: what it throws undoes what it did, and the
    /// transaction can go on.
    ///
    /// - Throws: what `body` throws. A connection that is gone can't go on; its transaction is undone anyway.
    package func savepoint<R>(
        _ body: (borrowing Session) throws(PostgresError) -> R
    ) throws(PostgresError) -> R {
        try execute(script: "SAVEPOINT part")
        let result: R
        do {
            result = try body(self)
        } catch {
            guard !error.isConnectionError else { throw error }
            try execute(script: "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
            throw error
        }
        try execute(script: "RELEASE SAVEPOINT part")
        return result
    }
    /// Runs `body` as a part of the transaction and undoes what it did, however it ends: to find out what it would do.
    ///
    /// - Throws: what `body` throws.
    package func rehearsal<R>(
        _ body: (borrowing Session) throws(PostgresError) -> R
    ) throws(PostgresError) -> R {
        try execute(script: "SAVEPOINT rehearsal")
        let result: R
        do {
            result = try body(self)
        } catch {
            guard !error.isConnectionError else { throw error }
            try execute(script: "ROLLBACK TO SAVEPOINT rehearsal; RELEASE SAVEPOINT rehearsal")
            throw error
        }
        try execute(script: "ROLLBACK TO SAVEPOINT rehearsal; RELEASE SAVEPOINT rehearsal")
        return result
    }
}
