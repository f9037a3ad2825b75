import CLibPQ

extension Link {
    /// Executes a prepared statement with one set of values after another, each a transaction of its own.
    ///
    /// The values that follow are asked for and sent as soon as the ones before are executed, while the server writes
    /// those to its disk: it finds the next at once, and what prepares them costs no time of its own.
    ///
    /// - Parameters:
    ///   - next: the values that follow; nil: none at present. Asked again after the commit, before this returns.
    ///   - committed: takes what an execution returned, once that is committed.
    /// - Throws: what one of them failed with; whether the one after it is committed is unknown then.
    func execute(
        _ statement: Statement,
        inTurn first: Binds,
        next: () -> Binds?,
        committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try checkText(of: first)
        try call.check()
        guard let id = statement.id, handle.transactionStatus == PQTRANS_IDLE else {
            throw PostgresError(.usage, "only a statement that is kept prepared, outside a transaction, goes in turn")
        }
        let name = try preparedName(of: statement, id, first)
        guard handle.enterPipeline() else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        do {
            try executeInTurn(name, first, next, committed)
        } catch {
            forget(id, after: error)
            leavePipeline()
            throw error
        }
        leavePipeline()
    }

    // MARK: - Private parts

    private func executeInTurn(
        _ name: String,
        _ first: Binds,
        _ next: () -> Binds?,
        _ committed: (borrowing Rows) throws(PostgresError) -> Void
    ) throws(PostgresError) {
        try send(name, first)
        while true {
            let rows = Rows(try executed())
            var following = next()
            if let binds = following { try send(name, binds) }
            do {
                try awaitCommit()
            } catch {
                if following != nil, !handle.isBroken { passOver() }
                throw error
            }
            try committed(rows)
            if following == nil {
                following = next()
                guard let binds = following else { return }
                try send(name, binds)
            }
        }
    }

    private func send(_ name: String, _ binds: Binds) throws(PostgresError) {
        guard handle.send(pipelined: name, binds) else { throw lost(.broken, nil, isOutcomeUnknown: true) }
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
