import CLibPQ

extension Link {
    /// Executes one of some prepared statements after another, each a transaction of its own.
    ///
    /// What follows is asked for and sent as soon as what comes before it is executed, while the server writes that to its
    /// disk: it finds the next at once, and what prepares it costs no time of its own.
    ///
    /// - Parameters:
    ///   - statements: those that may come, all with values of the same types.
    ///   - next: what follows; nil: nothing at present. Asked again after the commit, before this returns.
    ///   - committed: takes what an execution returned, once that is committed.
    /// - Throws: what one of them failed with; whether the one after it is committed is unknown then.
    func execute(
        _ statements: [Statement],
        inTurn first: Execution,
        next: () -> Execution?,
        committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try checkText(of: first.binds)
        try call.check()
        var names: [Int: String] = [:]
        for statement in statements {
            guard let id = statement.id, handle.transactionStatus == PQTRANS_IDLE else {
                throw PostgresError(.usage, "only statements that are kept prepared, outside a transaction, go in turn")
            }
            names[id] = try preparedName(of: statement, id, first.binds)
        }
        guard handle.enterPipeline() else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        do {
            try executeInTurn(names, first, next, committed)
        } catch {
            for id in names.keys { forget(id, after: error) }
            leavePipeline()
            throw error
        }
        leavePipeline()
    }

    // MARK: - Private parts

    private func executeInTurn(
        _ names: [Int: String],
        _ first: Execution,
        _ next: () -> Execution?,
        _ committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try send(first, names)
        while true {
            let rows = Rows(try executed())
            var following = next()
            if let execution = following { try send(execution, names) }
            do {
                try awaitCommit()
            } catch {
                if following != nil, !handle.isBroken { passOver() }
                throw error
            }
            try committed(rows)
            if following == nil {
                following = next()
                guard let execution = following else { return }
                try send(execution, names)
            }
        }
    }

    private func send(_ execution: Execution, _ names: [Int: String]) throws(PostgresError) {
        guard let name = execution.statement.id.flatMap({ names[$0] }) else {
            preconditionFailure("a statement goes in turn that was not said to come")
        }
        guard handle.send(pipelined: name, execution.binds) else { throw lost(.broken, nil, isOutcomeUnknown: true) }
    }

    /// Waits until a statement is executed; its commit comes after that.
    private func executed() throws(PostgresError) -> ResultHandle {
        var stop: Stop?
        var last: ResultHandle?
        var failure: PostgresError?
        while true {
            let answer = waitForAnswer(.statement, &stop)
            guard answer == .arrived else { throw lost(answer, failure, isOutcomeUnknown: true) }
            guard let result = handle.nextResult() else { break }
            if failure == nil { failure = self.error(in: result, stop) }
            last = consume result
        }
        awaitRequest(of: stop)
        if let failure {
            try awaitCommit()
            throw failure
        }
        guard let result = last else { throw lost(.broken, nil, isOutcomeUnknown: true) }
        return result
    }

    /// Waits until the server is through with a statement and its transaction.
    private func awaitCommit() throws(PostgresError) {
        var stop: Stop?
        var failure: PostgresError?
        // After an error libpq closes the list of its results, and after that it says that the server is in step again.
        var ends = 0
        while ends < 3 {
            let answer = waitForAnswer(.statement, &stop)
            guard answer == .arrived else { throw lost(answer, failure, isOutcomeUnknown: true) }
            guard let result = handle.nextResult() else {
                ends += 1
                continue
            }
            if result.status == PGRES_PIPELINE_SYNC {
                awaitRequest(of: stop)
                let isUnconfirmed = handle.takeUnconfirmedCommit()
                if let failure { throw failure }
                if isUnconfirmed { throw unconfirmed(stop) }
                return
            }
            if failure == nil { failure = self.error(in: result, stop) }
        }
        throw lost(.broken, failure, isOutcomeUnknown: true)
    }

    /// Takes and drops what a statement returns that was sent after one that failed.
    private func passOver() {
        do throws(PostgresError) {
            _ = try executed()
            try awaitCommit()
        } catch {
            // The error before it is the one that is told.
        }
    }

    /// A connection that can't leave is out of step, and of no use.
    private func leavePipeline() {
        if !handle.isBroken, !handle.exitPipeline() { close() }
    }
}
