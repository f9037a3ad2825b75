import CLibPQ

extension BlockingConnection {
    /// Implements ``Session/executePipelined(_:first:next:committed:)`` with libpq's pipeline mode: each statement is
    /// followed by a flush request, so that its rows arrive before its commit, and by a sync, which commits it.
    func executePipelined(
        _ statements: [Statement],
        first: BoundStatement,
        next: () -> BoundStatement?,
        committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try checkText(of: first.binds)
        try context.check()
        guard !handle.isBroken else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        var names: [Int: String] = [:]
        for statement in statements {
            guard let id = statement.id, handle.transactionStatus == PQTRANS_IDLE else {
                throw PostgresError(.usage, "a pipeline needs prepared statements, outside a transaction")
            }
            names[id] = try preparedName(of: statement, id, first.binds)
        }
        guard handle.enterPipeline() else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        // A connection that cannot leave pipeline mode has unread results, and cannot be used any more.
        defer { if !handle.isBroken, !handle.exitPipeline() { close() } }
        do {
            try runPipeline(names, first, next, committed)
        } catch {
            for id in names.keys { forget(id, after: error) }
            throw error
        }
    }

    // MARK: - Private parts

    private func runPipeline(
        _ names: [Int: String],
        _ first: BoundStatement,
        _ next: () -> BoundStatement?,
        _ committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try send(first, names)
        while true {
            let rows = Rows(try receiveRows())
            var following = next()
            if let statement = following { try send(statement, names) }
            do {
                try waitForCommit()
            } catch {
                if following != nil, !handle.isBroken { discardExecution() }
                throw error
            }
            try committed(rows)
            if following == nil {
                following = next()
                guard let statement = following else { return }
                try send(statement, names)
            }
        }
    }

    private func send(_ statement: BoundStatement, _ names: [Int: String]) throws(PostgresError) {
        guard let name = statement.statement.id.flatMap({ names[$0] }) else {
            preconditionFailure("the pipeline was given a statement that it did not prepare")
        }
        guard handle.send(pipelined: name, statement.binds) else { throw lost(.broken, nil, isOutcomeUnknown: true) }
    }

    /// Receives what one execution returns before its commit.
    private func receiveRows() throws(PostgresError) -> ResultHandle {
        var results = try receiveResults(.statement, isOutcomeUnknown: true)
        if let failure = results.failure {
            try waitForCommit()
            throw failure
        }
        guard let result = results.last.take() else { throw lost(.broken, nil, isOutcomeUnknown: true) }
        return result
    }

    /// Waits until the server has finished a statement and its transaction.
    private func waitForCommit() throws(PostgresError) {
        try checkOutcome(of: try receiveResults(.statement, isOutcomeUnknown: true, untilCommit: true))
    }

    /// Receives and drops the results of a statement that was sent after one that failed.
    private func discardExecution() {
        do throws(PostgresError) {
            _ = try receiveRows()
            try waitForCommit()
        } catch {
            // The caller reports the error of the earlier statement.
        }
    }
}
