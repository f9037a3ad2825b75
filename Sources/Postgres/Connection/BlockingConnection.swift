import CLibPQ
import Glibc
import Synchronization

/// One connection as its own thread uses it. Every function may block that thread, up to the deadline of the current
/// operation plus the settings' grace period.
final class BlockingConnection {
    private struct Prepared {
        let name: String
        let types: [UInt32]
    }

    let settings: ConnectionSettings
    let thread: ConnectionThread
    /// The time that the server has to answer a cancel request or a COMMIT.
    var grace: Duration
    /// The deadline and cancellation of the current operation.
    var context: OperationContext
    var handle = ConnectionHandle()
    private var prepared: [Int: Prepared] = [:]
    private var preparedCount = 0
    /// Unique, because a pooler may give this connection a server session that still has another client's statements.
    private let preparedPrefix = "siwad_" + String(UInt64.random(in: .min ... .max), radix: 36)

    init(_ settings: ConnectionSettings, _ thread: ConnectionThread) {
        self.settings = settings
        self.thread = thread
        self.grace = settings.grace
        self.context = OperationContext(lasting: settings.connectTimeout)
    }

    /// Connects, checks the server and applies the session settings.
    func open(_ parameters: [(keyword: String, value: String)]) throws(PostgresError) {
        try connect(toAnyOf: settings.places(of: parameters))
        guard handle.serverVersion >= 14_00_00 else {
            throw PostgresError(
                .connectionFailed,
                "the server is PostgreSQL \(handle.serverVersion / 10_000); use PostgreSQL 14 or later"
            )
        }
        // Another encoding lacks characters: the server would refuse texts with them, or store them wrongly.
        if let encoding = handle.serverEncoding, encoding != "UTF8" {
            throw PostgresError(.usage, "the database's encoding is \(encoding); create one with ENCODING 'UTF8'")
        }
        // The error of a query has to come before the attempt is abandoned, which reports a less precise cause: a pooler does not
        // answer cancel requests for a client that waits for a server.
        grace = .milliseconds(10)
        defer { grace = settings.grace }
        do throws(PostgresError) {
            // Before any setting is changed, because a pooler would pass the change on to other clients.
            try refuseSharedBackends()
            _ = try execute(script: settings.sessionScript)
        } catch let error where error.code == .timedOut || error.code == .connectionLost && .now >= context.deadline {
            if context.isCancelled { throw .taskCancelled }
            throw PostgresError(
                .connectionFailed,
                "the login was accepted, but the first query not answered in time; a pooler may have no free connection: raise "
                    + "its pool_size"
            )
        } catch let error where error.code == .connectionLost {
            if context.isCancelled { throw .taskCancelled }
            throw PostgresError(.connectionFailed, error.message, sqlState: error.sqlState)
        }
    }

    /// Connects to the first place that answers. Each gets an equal share of the time that is left.
    private func connect(toAnyOf places: [[(keyword: String, value: String)]]) throws(PostgresError) {
        var failures: [PostgresError] = []
        for (number, place) in places.enumerated() {
            let share = ContinuousClock.now.duration(to: context.deadline) / (places.count - number)
            do throws(PostgresError) {
                return try connect(to: place, until: .now + share)
            } catch {
                failures.append(error)
                // The places are addresses of one host: a wrong password is wrong at the next one too.
                guard error.isRetryable else { break }
            }
        }
        throw PostgresError(connectionFailures: failures)
    }

    /// Connects to one server.
    func connect(
        to parameters: [(keyword: String, value: String)],
        until deadline: ContinuousClock.Instant
    ) throws(PostgresError) {
        // Looking up the addresses may have taken the time, and libpq would block in it again.
        guard .now < deadline else { throw Self.unanswered }
        handle.connect(parameters)
        handle.setVerbose(true)
        var next = PGRES_POLLING_WRITING
        while next != PGRES_POLLING_OK {
            guard next != PGRES_POLLING_FAILED, !handle.isBroken else { throw handle.connectionFailure }
            if context.isCancelled { throw .taskCancelled }
            let events = next == PGRES_POLLING_READING ? POLLIN : POLLOUT
            switch thread.wait(handle.socket, events, until: deadline) {
            case .ready: next = handle.continueConnecting()
            case .woken: continue
            case .timedOut: throw Self.unanswered
            }
        }
        handle.setVerbose(false)
        guard handle.setNonBlocking() else { throw handle.connectionFailure }
    }

    func close() {
        handle.close()
    }

    /// Checks, without waiting, whether the server ended the connection while it was idle.
    func isStale() -> Bool {
        if handle.isBroken { return true }
        // Notices and errors of the server come before the end of the connection.
        while thread.wait(handle.socket, POLLIN, until: .now) == .ready {
            guard handle.consumeInput() else {
                close()
                return true
            }
        }
        return false
    }

    /// Waits for notifications until the deadline of the current operation; returns none if none has arrived by then.
    ///
    /// - Parameter isEnded: asked each time the thread is woken; true ends the wait.
    func waitForNotifications(unless isEnded: () -> Bool) throws(PostgresError) -> [PostgresNotification] {
        while true {
            let taken = handle.takeNotifications()
            if !taken.isEmpty || isEnded() { return taken }
            if context.isCancelled { throw .taskCancelled }
            switch thread.wait(handle.socket, POLLIN, until: context.deadline) {
            case .ready:
                guard handle.consumeInput() else { throw lost(.broken, nil, isOutcomeUnknown: false) }
            case .woken: continue
            case .timedOut: return []
            }
        }
    }

    /// Executes one statement, after preparing it if this connection has not prepared it yet.
    func execute(_ statement: Statement, _ binds: Binds) throws(PostgresError) -> ResultHandle {
        try checkText(of: binds)
        try context.check()
        guard let id = statement.id else {
            return try run(.statement) { $0.send(once: statement.sql, binds) }
        }
        let name = try preparedName(of: statement, id, binds)
        do {
            return try run(.statement) { $0.send(prepared: name, binds) }
        } catch {
            forget(id, after: error)
            throw error
        }
    }

    /// Executes statements by the simple protocol, and returns the result of the last.
    func execute(script: String) throws(PostgresError) -> ResultHandle {
        try context.check()
        return try run(.statement) { $0.send(script: script) }
    }

    /// Runs `body` in a transaction, which is rolled back if it throws. Without an isolation level, runs it outside a
    /// transaction, and makes sure that none is open afterwards.
    func use<R>(
        _ isolation: IsolationLevel?,
        _ body: (borrowing Session) throws(PostgresError) -> R
    ) throws(PostgresError) -> R {
        if let isolation { _ = try execute(script: "BEGIN ISOLATION LEVEL \(isolation.rawValue)") }
        let value: R
        do throws(PostgresError) {
            // A named constant, because the optimizer of Swift 6.3 crashes on a temporary here.
            let session = Session(self)
            value = try body(session)
            if isolation != nil {
                try checkTransaction()
                try context.check()
            } else if handle.transactionStatus != PQTRANS_IDLE, !handle.isBroken {
                throw PostgresError(.usage, "a session ended with an open transaction; use transaction { } instead")
            }
        } catch {
            rollBack()
            throw error
        }
        if isolation != nil { _ = try run(.commit) { $0.send(script: "COMMIT") } }
        return value
    }

    /// Lets the next execution prepare the statement again if the server forgot it, or its plan no longer fits the tables.
    func forget(_ id: Int, after error: PostgresError) {
        guard error.sqlState == .featureNotSupported || error.sqlState == .invalidStatementName else { return }
        prepared[id] = nil
    }

    func checkText(of binds: Binds) throws(PostgresError) {
        guard let parameter = binds.firstWithNUL else { return }
        throw PostgresError(
            .usage,
            "parameter $\(parameter) is a text with a NUL, which PostgreSQL cannot store; refuse it earlier",
            sqlState: .characterNotInRepertoire
        )
    }

    /// The statement's name on this connection, where it is prepared if it was not yet.
    func preparedName(of statement: Statement, _ id: Int, _ binds: Binds) throws(PostgresError) -> String {
        if let known = prepared[id] {
            guard known.types.elementsEqual(binds.values, by: { $0 == $1.type }) else {
                throw PostgresError(
                    .usage,
                    "a statement got binds of other types than the first time; bind the same types"
                )
            }
            return known.name
        }
        let types = binds.values.map(\.type)
        preparedCount += 1
        let name = "\(preparedPrefix)_\(preparedCount)"
        _ = try run(.preparation) { $0.send(prepare: statement.sql, as: name, types: types) }
        prepared[id] = Prepared(name: name, types: types)
        return name
    }

    // MARK: - Private parts

    private static let unanswered = PostgresError(.connectionFailed, "no answer from PostgreSQL in time")

    private func checkTransaction() throws(PostgresError) {
        // Closed after the last statement, if its cancel request got no answer.
        guard !handle.isBroken else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        switch handle.transactionStatus {
        case PQTRANS_INTRANS:
            return
        case PQTRANS_INERROR:
            throw PostgresError(.usage, "a statement of the transaction failed and its error was caught; rethrow it")
        default:
            throw PostgresError(.usage, "the transaction ended before its closure did; leave COMMIT to transaction { }")
        }
    }

    /// Ends an open transaction. If that fails, the connection is closed, which ends it too.
    private func rollBack() {
        guard !handle.isBroken, handle.transactionStatus != PQTRANS_IDLE else { return }
        do {
            _ = try run(.rollback) { $0.send(script: "ROLLBACK") }
        } catch {
            close()
        }
    }
}

/// The deadline of one use of a connection, and whether its task was cancelled.
final class OperationContext: Sendable {
    let deadline: ContinuousClock.Instant
    private let cancelled = Atomic(false)

    init(lasting time: Duration) {
        deadline = .now + time
    }

    /// Marks the task as cancelled. Callable from any thread.
    func cancel() {
        cancelled.store(true, ordering: .releasing)
    }

    var isCancelled: Bool { cancelled.load(ordering: .acquiring) }

    /// Refuses to start another statement after the deadline or a cancellation.
    func check() throws(PostgresError) {
        if isCancelled { throw .taskCancelled }
        if ContinuousClock.now >= deadline { throw PostgresError(.timedOut, "the deadline passed before a statement") }
    }
}
