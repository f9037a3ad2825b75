import CLibPQ
import Glibc

/// One connection as its own thread sees it: every function here may block that thread, up to the call's deadline and
/// the settings' grace.
final class Link {
    private struct Prepared {
        let name: String
        let types: [UInt32]
    }

    let settings: ConnectionSettings
    let thread: ConnectionThread
    /// What bounds the present use.
    var call: Call
    /// Only this class and its waiting parts use it.
    var handle: ConnectionHandle
    private var prepared: [Int: Prepared] = [:]
    private var preparedCount = 0
    /// Of no other connection: a session that had another client may still have its statements.
    private let preparedPrefix = "siwad_" + String(UInt64.random(in: .min ... .max), radix: 36)

    /// A link that is not connected.
    init(_ settings: ConnectionSettings, _ thread: ConnectionThread) {
        self.settings = settings
        self.thread = thread
        self.call = Call(lasting: settings.connectTimeout)
        self.handle = ConnectionHandle()
    }

    /// Connects, within the present call.
    func open(_ parameters: [(keyword: String, value: String)]) throws(PostgresError) {
        try connect(to: parameters)
        guard handle.serverVersion >= 14_00_00 else {
            throw PostgresError(
                .connectionFailed,
                "the server is PostgreSQL \(handle.serverVersion / 10_000); use PostgreSQL 14 or later"
            )
        }
        if let encoding = handle.serverEncoding, encoding != "UTF8" {
            // It would refuse, or garble, whatever text it has no characters for.
            throw PostgresError(
                .usage,
                "the database's encoding is \(encoding); create one with ENCODING 'UTF8'"
            )
        }
        // Before anything is set: it would be left to other clients of the pooler.
        try refuseSharedSessions()
        _ = try execute(script: settings.sessionScript)
    }

    /// Connects to one place, within the present call.
    func connect(to parameters: [(keyword: String, value: String)]) throws(PostgresError) {
        handle.connect(parameters)
        try finishConnecting()
    }

    /// Whether the connection is gone for good.
    var isClosed: Bool { handle.isBroken }

    /// The server's version as PostgreSQL counts.
    var serverVersion: Int { handle.serverVersion }

    /// Closes the connection; everything after this throws `connectionLost`.
    func close() {
        handle.close()
    }

    /// Looks, without waiting, whether the server ended the connection while nobody used it.
    func isStale() -> Bool {
        if handle.isBroken { return true }
        // The server's last words come first, the end of the connection after them.
        while thread.wait(handle.socket, POLLIN, until: .now) == .ready {
            guard handle.consumeInput() else {
                close()
                return true
            }
        }
        return false
    }

    /// Executes one statement, preparing it first if this connection has not yet.
    func execute(_ statement: Statement, _ binds: Binds) throws(PostgresError) -> ResultHandle {
        try checkText(of: binds)
        try call.check()
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

    /// Executes statements by the simple protocol, and returns what the last of them did.
    func execute(script: String) throws(PostgresError) -> ResultHandle {
        try call.check()
        return try run(.statement) { $0.send(script: script) }
    }

    /// Runs `body` in a transaction; what it throws rolls the transaction back.
    func transaction<R>(
        _ isolation: IsolationLevel,
        _ body: (borrowing Session) throws(PostgresError) -> R
    ) throws(PostgresError) -> R {
        _ = try execute(script: "BEGIN ISOLATION LEVEL \(isolation.rawValue)")
        let value: R
        do {
            // Named, because the optimizer of Swift 6.3 crashes on a temporary here.
            let session = Session(self)
            value = try body(session)
            try checkTransaction()
            try call.check()
        } catch {
            rollBack()
            throw error
        }
        _ = try run(.commit) { $0.send(script: "COMMIT") }
        return value
    }

    /// Runs `body` without a transaction around it, and sees to it that it leaves none behind.
    func session<R>(_ body: (borrowing Session) throws(PostgresError) -> R) throws(PostgresError) -> R {
        let value: R
        do {
            // Named, because the optimizer of Swift 6.3 crashes on a temporary here.
            let session = Session(self)
            value = try body(session)
        } catch {
            rollBack()
            throw error
        }
        if handle.transactionStatus != PQTRANS_IDLE, !handle.isBroken {
            rollBack()
            throw PostgresError(.usage, "a session ended inside a transaction of its own; use transaction { } for it")
        }
        return value
    }

    /// When the plan no longer fits the tables, or the server forgot the statement, the next execution prepares anew.
    func forget(_ id: Int, after error: PostgresError) {
        guard error.sqlState == .featureNotSupported || error.sqlState == .invalidStatementName else { return }
        prepared[id] = nil
    }

    /// Refuses a text that PostgreSQL cannot hold.
    func checkText(of binds: Binds) throws(PostgresError) {
        guard let parameter = binds.firstWithNUL else { return }
        throw PostgresError(
            .usage,
            "parameter $\(parameter) is a text with a NUL, which PostgreSQL cannot hold; refuse it earlier",
            sqlState: .characterNotInRepertoire
        )
    }

    // MARK: - Private parts

    private func checkTransaction() throws(PostgresError) {
        // Given up after the last statement, whose cancel request got no answer.
        guard !handle.isBroken else { throw lost(.broken, nil, isOutcomeUnknown: false) }
        switch handle.transactionStatus {
        case PQTRANS_INTRANS:
            return
        case PQTRANS_INERROR:
            throw PostgresError(
                .usage,
                "a statement of the transaction failed and its error was kept back; let it pass"
            )
        default:
            throw PostgresError(.usage, "the transaction ended before its closure did; leave COMMIT to transaction { }")
        }
    }

    /// Ends a transaction that is under way. A connection where that fails is closed, which ends it as well.
    private func rollBack() {
        guard !handle.isBroken, handle.transactionStatus != PQTRANS_IDLE else { return }
        do {
            _ = try run(.rollback) { $0.send(script: "ROLLBACK") }
        } catch {
            close()
        }
    }

    /// The name of the prepared statement on this connection.
    func preparedName(of statement: Statement, _ id: Int, _ binds: Binds) throws(PostgresError) -> String {
        if let known = prepared[id] {
            guard known.types.elementsEqual(binds.values, by: { $0 == $1.type }) else {
                throw PostgresError(
                    .usage,
                    "a statement was given binds of other types than the first time; bind the same types"
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

    private func finishConnecting() throws(PostgresError) {
        handle.setVerbose(true)
        var next = PGRES_POLLING_WRITING
        while next != PGRES_POLLING_OK {
            guard next != PGRES_POLLING_FAILED, !handle.isBroken else {
                throw PostgresError(connectionFailure: handle.errorMessage)
            }
            if call.isCancelled { try call.check() }
            let events = next == PGRES_POLLING_READING ? POLLIN : POLLOUT
            switch thread.wait(handle.socket, events, until: call.deadline) {
            case .ready: next = handle.continueConnecting()
            case .woken: continue
            case .timedOut:
                throw PostgresError(
                    .connectionFailed,
                    "no answer from PostgreSQL in time"
                )
            }
        }
        handle.setVerbose(false)
        guard handle.setNonBlocking() else { throw PostgresError(connectionFailure: handle.errorMessage) }
    }
}
