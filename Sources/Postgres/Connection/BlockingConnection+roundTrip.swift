import CLibPQ
import Glibc

extension BlockingConnection {
    /// What a round trip is for, which decides what may interrupt it and what its loss means.
    enum Purpose {
        /// A statement or script, cancelled by the deadline and by the task.
        case statement
        /// Cancelled like a statement, but without effect.
        case preparation
        /// Never cancelled, so that its outcome is known if there is any answer.
        case commit
        /// Never cancelled; its loss changes nothing.
        case rollback

        fileprivate var isCancellable: Bool {
            switch self {
            case .statement, .preparation: true
            case .commit, .rollback: false
            }
        }

        fileprivate func canCommit(in status: PGTransactionStatusType) -> Bool {
            switch self {
            case .statement: status == PQTRANS_IDLE
            case .commit: true
            case .preparation, .rollback: false
            }
        }
    }

    enum WaitResult {
        case arrived
        case broken
        case overdue
    }

    /// The cancellation of a running statement.
    struct Cancellation {
        /// `timedOut` or `cancelled`.
        let code: PostgresError.Code
        /// The latest request; nil if it could not be sent.
        var request: CancelRequest?
        /// When to repeat the request: PostgreSQL ignores one that arrives before the backend has started the statement.
        var nextRequest: ContinuousClock.Instant
        /// From the next request to the one after it.
        var interval: Duration
        /// When to close the connection if there is no answer.
        let deadline: ContinuousClock.Instant
    }

    struct Results: ~Copyable {
        var last: ResultHandle?
        /// The first error.
        var failure: PostgresError?
        var cancellation: Cancellation?
    }

    /// Sends a request and receives all its results. Throws its first error, or returns its last result.
    func run(
        _ purpose: Purpose,
        _ send: (borrowing ConnectionHandle) -> Bool
    ) throws(PostgresError) -> ResultHandle {
        let canCommit = purpose.canCommit(in: handle.transactionStatus)
        guard send(handle) else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        var results = try receiveResults(purpose, isOutcomeUnknown: canCommit)
        try checkOutcome(of: results)
        guard let result = results.last.take() else { throw lost(.broken, nil, isOutcomeUnknown: canCommit) }
        return result
    }

    /// Throws the first error in the results, or the doubt about their commit.
    func checkOutcome(of results: borrowing Results) throws(PostgresError) {
        let isUnconfirmed = handle.takeUnconfirmedCommit()
        if let failure = results.failure { throw failure }
        if isUnconfirmed { throw unconfirmed(results.cancellation) }
    }

    /// Receives results until libpq ends their list, or in a pipeline until the commit that follows a list.
    ///
    /// - Throws: `connectionLost`, with `isOutcomeUnknown` as given; `usage` for COPY.
    func receiveResults(
        _ purpose: Purpose,
        isOutcomeUnknown: Bool,
        untilCommit: Bool = false
    ) throws(PostgresError) -> Results {
        var results = Results()
        var ends = 0
        while true {
            let wait = waitForResult(purpose, &results.cancellation)
            guard wait == .arrived else { throw lost(wait, results.failure, isOutcomeUnknown: isOutcomeUnknown) }
            guard let result = handle.nextResult() else {
                guard untilCommit else { break }
                // After an error libpq ends the list once more before it reports the commit.
                ends += 1
                guard ends < 3 else { throw lost(.broken, results.failure, isOutcomeUnknown: isOutcomeUnknown) }
                continue
            }
            if untilCommit, result.status == PGRES_PIPELINE_SYNC {
                waitForRequest(of: results.cancellation)
                return results
            }
            if results.failure == nil { results.failure = error(in: result, results.cancellation) }
            if let failure = results.failure, failure.code == .usage {
                close()
                throw failure
            }
            results.last = consume result
        }
        if handle.isBroken { throw lost(.broken, results.failure, isOutcomeUnknown: isOutcomeUnknown) }
        waitForRequest(of: results.cancellation)
        return results
    }

    /// Waits until libpq has the next result, and cancels the statement on the server when necessary.
    func waitForResult(_ purpose: Purpose, _ cancellation: inout Cancellation?) -> WaitResult {
        let deadline = purpose.isCancellable ? context.deadline : max(context.deadline, .now) + grace
        while true {
            let unsent = handle.flush()
            guard unsent >= 0 else { return .broken }
            if unsent == 0, !handle.isBusy { return .arrived }
            if cancellation == nil, purpose.isCancellable, context.isCancelled { cancellation = cancel(.cancelled) }
            let events = unsent == 0 ? POLLIN : POLLIN | POLLOUT
            let wakeup = cancellation.map { min($0.nextRequest, $0.deadline) } ?? deadline
            switch thread.wait(handle.socket, events, until: wakeup) {
            case .ready:
                guard handle.consumeInput() else { return .broken }
            case .woken:
                continue
            case .timedOut:
                guard purpose.isCancellable, cancellation.map({ .now < $0.deadline }) ?? true else { return .overdue }
                cancellation = cancellation.map(cancelAgain) ?? cancel(.timedOut)
            }
        }
    }

    private func cancel(_ code: PostgresError.Code) -> Cancellation {
        let now = ContinuousClock.now
        let interval = Duration.milliseconds(100)
        return Cancellation(
            code: code,
            request: .send(for: handle, waking: thread),
            nextRequest: now + interval,
            interval: interval * 2,
            deadline: now + grace
        )
    }

    /// Repeats the request, at growing intervals because each one costs the server a process. Only one is in progress at a
    /// time, so that waiting for the latest means waiting for all.
    private func cancelAgain(_ cancellation: Cancellation) -> Cancellation {
        var cancellation = cancellation
        if cancellation.request?.isFinished ?? true { cancellation.request = .send(for: handle, waking: thread) }
        cancellation.nextRequest = .now + cancellation.interval
        cancellation.interval *= 2
        return cancellation
    }

    /// Waits until the server has received the cancel request, because later it would cancel the next statement.
    func waitForRequest(of cancellation: Cancellation?) {
        guard let cancellation, let request = cancellation.request else { return }
        while !request.isFinished {
            if thread.wait(-1, 0, until: cancellation.deadline) == .timedOut, !request.isFinished {
                close()
                return
            }
        }
    }

    // MARK: - Errors

    /// Closes the connection, and describes how it was lost. Quotes only reports of libpq itself, because a report of the
    /// server may contain values.
    func lost(_ wait: WaitResult, _ failure: PostgresError?, isOutcomeUnknown: Bool) -> PostgresError {
        let cause: String
        if let sqlState = failure?.sqlState {
            cause = "PostgreSQL ended the connection (SQLSTATE \(sqlState))"
        } else if wait == .overdue {
            cause = "PostgreSQL did not answer in time; the connection was closed"
        } else {
            let report = handle.errorMessage.singleLine
            cause = "the connection to PostgreSQL was lost" + (report.isEmpty ? "" : ": \(report)")
        }
        close()
        var error = PostgresError(.connectionLost, cause, sqlState: failure?.sqlState)
        error.detail = failure?.message
        error.isOutcomeUnknown = isOutcomeUnknown
        return error
    }

    /// A commit that is on the server's disk, but perhaps not on the synchronous standby. If that standby is promoted, the
    /// commit is lost, so the caller must not regard it as done.
    func unconfirmed(_ cancellation: Cancellation?) -> PostgresError {
        var error = PostgresError(
            cancellation?.code ?? .timedOut,
            "a commit was stopped while it waited for synchronous replication; it is unknown whether a standby has it"
        )
        error.isOutcomeUnknown = true
        return error
    }

    func error(in result: borrowing ResultHandle, _ cancellation: Cancellation?) -> PostgresError? {
        switch result.status {
        case PGRES_COMMAND_OK, PGRES_TUPLES_OK, PGRES_EMPTY_QUERY:
            return nil
        case PGRES_COPY_IN, PGRES_COPY_OUT, PGRES_COPY_BOTH:
            return PostgresError(.usage, "COPY is not supported; insert from arrays instead")
        default:
            break
        }
        guard let sqlState = result.errorField(CLIBPQ_DIAG_SQLSTATE) else {
            return PostgresError(.connectionLost, result.errorMessage.singleLine)
        }
        if let cancellation, sqlState == SQLState.queryCanceled.rawValue {
            let cause = cancellation.code == .cancelled ? "the task was cancelled" : "the deadline passed"
            return PostgresError(cancellation.code, "\(cause); the statement was cancelled", sqlState: .queryCanceled)
        }
        return PostgresError(report: result, SQLState(rawValue: sqlState))
    }
}
