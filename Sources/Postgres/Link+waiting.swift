import CLibPQ
import Glibc

extension Link {
    /// What a round trip is for, which decides what may interrupt it and what its loss means.
    enum Purpose {
        /// A statement or script, cancelled by the deadline and by the task.
        case statement
        /// As a statement, but without effect.
        case preparation
        /// Never cancelled, so that its outcome is known if there is any answer at all.
        case commit
        /// Never cancelled either; its loss changes nothing.
        case rollback

        fileprivate var isCancellable: Bool {
            switch self {
            case .statement, .preparation: true
            case .commit, .rollback: false
            }
        }

        /// Whether something is committed unless a transaction is open around it.
        fileprivate func canCommit(in status: PGTransactionStatusType) -> Bool {
            switch self {
            case .statement: status == PQTRANS_IDLE
            case .commit: true
            case .preparation, .rollback: false
            }
        }
    }

    /// How waiting for an answer ended.
    enum Answer {
        case arrived
        case broken
        case overdue
    }

    /// A statement that was asked to stop, and why.
    struct Stop {
        let code: PostgresError.Code
        /// The latest one; nil: it could not even be tried.
        var request: CancelRequest?
        /// When to ask again if there is no answer: PostgreSQL ignores a request that comes before it has begun with the
        /// statement.
        var again: ContinuousClock.Instant
        /// Between that and the request after it.
        var pause: Duration
        /// When to give the connection up if there is no answer.
        let until: ContinuousClock.Instant
    }

    /// Sends something and waits for all that it returns: its first error, or else its last result.
    func run(
        _ purpose: Purpose,
        _ send: (borrowing ConnectionHandle) -> Bool
    ) throws(PostgresError) -> ResultHandle {
        let canCommit = purpose.canCommit(in: handle.transactionStatus)
        guard send(handle) else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        var stop: Stop?
        var last: ResultHandle?
        var failure: PostgresError?
        while true {
            let answer = waitForAnswer(purpose, &stop)
            guard answer == .arrived else { throw lost(answer, failure, isOutcomeUnknown: canCommit) }
            guard let result = handle.nextResult() else { break }
            if failure == nil { failure = error(in: result, stop) }
            if failure?.code == .usage { throw abandoned() }
            last = consume result
        }
        if handle.isBroken { throw lost(.broken, failure, isOutcomeUnknown: canCommit) }
        awaitRequest(of: stop)
        let isUnconfirmed = handle.takeUnconfirmedCommit()
        if let failure { throw failure }
        if isUnconfirmed { throw unconfirmed(stop) }
        guard let result = last else { throw lost(.broken, nil, isOutcomeUnknown: canCommit) }
        return result
    }

    /// Waits until the next result can be taken without waiting.
    func waitForAnswer(_ purpose: Purpose, _ stop: inout Stop?) -> Answer {
        let patience = purpose.isCancellable ? call.deadline : max(call.deadline, .now) + settings.grace
        while true {
            let unsent = handle.flush()
            guard unsent >= 0 else { return .broken }
            if unsent == 0, !handle.isBusy { return .arrived }
            if stop == nil, purpose.isCancellable, call.isCancelled { stop = requestStop(.cancelled) }
            let events = unsent == 0 ? POLLIN : POLLIN | POLLOUT
            switch thread.wait(handle.socket, events, until: stop.map { min($0.again, $0.until) } ?? patience) {
            case .ready:
                guard handle.consumeInput() else { return .broken }
            case .woken:
                continue
            case .timedOut:
                guard purpose.isCancellable, stop.map({ .now < $0.until }) ?? true else { return .overdue }
                stop = stop.map(askedAgain) ?? requestStop(.timedOut)
            }
        }
    }

    private func requestStop(_ code: PostgresError.Code) -> Stop {
        let now = ContinuousClock.now
        return Stop(
            code: code,
            request: .send(for: handle, waking: thread),
            again: now + Self.pauseBetweenRequests,
            pause: Self.pauseBetweenRequests * 2,
            until: now + settings.grace
        )
    }

    /// Asks once more, at growing intervals because each request costs the server a process. Only one is under way at a
    /// time, so that the wait for the latest is a wait for all.
    private func askedAgain(_ stop: Stop) -> Stop {
        var stop = stop
        if stop.request?.isFinished ?? true { stop.request = .send(for: handle, waking: thread) }
        stop.again = .now + stop.pause
        stop.pause *= 2
        return stop
    }

    private static var pauseBetweenRequests: Duration { .milliseconds(100) }

    /// Waits until a cancel request has reached the server, because later it would hit the next statement.
    func awaitRequest(of stop: Stop?) {
        guard let stop, let request = stop.request else { return }
        while !request.isFinished {
            if thread.wait(-1, 0, until: stop.until) == .timedOut, !request.isFinished {
                close()
                return
            }
        }
    }

    // MARK: - Errors

    /// Closes the connection, and says how it was lost. Only a report of libpq's own is quoted: a server's may hold
    /// values.
    func lost(_ answer: Answer, _ failure: PostgresError?, isOutcomeUnknown: Bool) -> PostgresError {
        let cause: String
        if let sqlState = failure?.sqlState {
            cause = "PostgreSQL ended the connection (SQLSTATE \(sqlState))"
        } else if answer == .overdue {
            cause = "PostgreSQL did not answer in time; the connection was given up"
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

    /// A commit that is on the server's disk, but perhaps not on a standby's that it was to wait for. If that one takes
    /// over, it is gone: so whoever asked must not be told that it is done.
    func unconfirmed(_ stop: Stop?) -> PostgresError {
        var error = PostgresError(
            stop?.code ?? .timedOut,
            "PostgreSQL was asked to stop while a commit waited for synchronous replication; whether a standby has it is "
                + "unknown"
        )
        error.isOutcomeUnknown = true
        return error
    }

    /// COPY needs a conversation that this client does not hold.
    private func abandoned() -> PostgresError {
        close()
        return PostgresError(.usage, "COPY is not supported; insert from arrays instead")
    }

    func error(in result: borrowing ResultHandle, _ stop: Stop?) -> PostgresError? {
        switch result.status {
        case PGRES_COMMAND_OK, PGRES_TUPLES_OK, PGRES_EMPTY_QUERY:
            return nil
        case PGRES_COPY_IN, PGRES_COPY_OUT, PGRES_COPY_BOTH:
            return PostgresError(.usage, "COPY")
        default:
            break
        }
        guard let sqlState = result.errorField(CLIBPQ_DIAG_SQLSTATE) else {
            return PostgresError(.connectionLost, result.errorMessage.singleLine)
        }
        if let stop, sqlState == SQLState.queryCanceled.rawValue {
            let cause = stop.code == .cancelled ? "the task was cancelled" : "the deadline passed"
            return PostgresError(stop.code, "\(cause); the statement was cancelled", sqlState: .queryCanceled)
        }
        return PostgresError(report: result, SQLState(rawValue: sqlState))
    }
}
