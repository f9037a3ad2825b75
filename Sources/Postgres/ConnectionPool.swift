import Synchronization

/// At most so many connections, opened when they are first needed and replaced when they break.
package final class ConnectionPool: Sendable {
    private typealias Grant = PoolGrant<PostgresConnection>
    private typealias Waiter = CheckedContinuation<Result<Grant, PostgresError>, Never>
    private typealias State = PoolState<PostgresConnection, Waiter>

    private let settings: ConnectionSettings
    private let maximum: Int
    private let acquireTimeout: Duration
    private let state: Mutex<State>

    /// A pool that connects to nothing yet.
    ///
    /// - Parameter acquireTimeout: how long a caller waits for a connection while all are in use.
    package init(_ settings: ConnectionSettings, maximum: Int, acquireTimeout: Duration = .seconds(5)) {
        precondition(maximum > 0, "a pool needs room for a connection")
        self.settings = settings
        self.maximum = maximum
        self.acquireTimeout = acquireTimeout
        self.state = Mutex(State(maximum: maximum))
    }

    /// Lends a connection to `body`, as `PostgresConnection.withSession` does.
    ///
    /// A connection that the server ended while nobody used it is replaced before `body` begins.
    ///
    /// - Throws: what `body` throws; `connectionFailed`; `timedOut` also when no connection became free in time.
    package func withSession<R: Sendable>(
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(try await acquire(), deadline) { link throws(PostgresError) in try link.session(body) }
    }

    /// As ``withSession(deadline:_:)``, but nil at once when all connections are in use.
    package func withSessionIfFree<R: Sendable>(
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R? {
        guard let grant = try grantAtOnce() else { return nil }
        return try await use(try await connection(grant), deadline) { link throws(PostgresError) in
            try link.session(body)
        }
    }

    /// Runs `body` in a transaction, as `PostgresConnection.transaction` does.
    ///
    /// - Throws: as `withSession`, and `connectionLost` with `isOutcomeUnknown`.
    package func transaction<R: Sendable>(
        _ isolation: IsolationLevel = .readCommitted,
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(try await acquire(), deadline) { link throws(PostgresError) in
            try link.transaction(isolation, body)
        }
    }

    /// Lends a connection for work of several transactions that changes its settings; it is closed afterwards.
    ///
    /// - Throws: what `body` throws; otherwise as ``withSession(deadline:_:)``.
    package func withConnection<R: Sendable>(_ body: (PostgresConnection) async throws -> R) async throws -> R {
        let connection = try await acquire()
        let result: Result<R, any Error>
        do {
            result = .success(try await body(connection))
        } catch {
            result = .failure(error)
        }
        await connection.close()
        await giveBack(connection)
        return try result.get()
    }

    /// Closes idle connections at once and the others when they are given back; refuses whoever waits or comes.
    package func close() async {
        let (idle, waiters) = state.withLock { $0.poolClosed() }
        for waiter in waiters { waiter.resume(returning: .failure(Self.closedError)) }
        for connection in idle { await connection.close() }
    }

    // MARK: - Private parts

    private static let closedError = PostgresError(.usage, "the connection pool is closed")

    private func use<R: Sendable>(
        _ first: PostgresConnection,
        _ deadline: Duration?,
        _ body: @Sendable (Link) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        var connection = first
        while true {
            do throws(PostgresError) {
                let result = try await connection.unlessStale(deadline: deadline, body)
                await giveBack(connection)
                if let result { return result }
            } catch {
                // What was said to be read only when it was opened stays so, also when new ones are not.
                if error.sqlState == .readOnlyTransaction { await connection.close() }
                await giveBack(connection)
                throw error
            }
            connection = try await acquire()
        }
    }

    private func acquire() async throws(PostgresError) -> PostgresConnection {
        if let grant = try grantAtOnce() { return try await connection(grant) }
        return try await connection(try await waitForGrant())
    }

    /// What can be had without waiting; nil if there is nothing.
    private func grantAtOnce() throws(PostgresError) -> Grant? {
        switch state.withLock({ $0.connectionWanted() }) {
        case .grant(let grant): return grant
        case .refuse: throw Self.closedError
        case .wait: return nil
        }
    }

    private func connection(_ grant: Grant) async throws(PostgresError) -> PostgresConnection {
        switch grant {
        case .connection(let connection):
            return connection
        case .permission:
            do throws(PostgresError) {
                return try await PostgresConnection.connect(settings)
            } catch {
                await carryOut(state.withLock { $0.connectionLost() })
                throw error
            }
        }
    }

    private func giveBack(_ connection: PostgresConnection) async {
        let isClosed = connection.isClosed
        await carryOut(state.withLock { isClosed ? $0.connectionLost() : $0.connectionReturned(connection) })
    }

    private func carryOut(_ action: State.ReturnAction) async {
        switch action {
        case .resume(let waiter, let grant): waiter.resume(returning: .success(grant))
        case .close(let connection): await connection.close()
        case .nothing: break
        }
    }

    private func waitForGrant() async throws(PostgresError) -> Grant {
        let id = state.withLock { $0.nextWaiterID() }
        // Ends with this function, which cancels it as soon as the wait is over.
        let timer = Task {
            try await Task.sleep(for: acquireTimeout)
            refuse(
                id,
                PostgresError(
                    .timedOut,
                    "all \(maximum) connections to PostgreSQL stayed in use; allow more or try again later"
                )
            )
        }
        defer { timer.cancel() }
        let result: Result<Grant, PostgresError> = await withTaskCancellationHandler {
            await withCheckedContinuation { waiter in enlist(id, waiter) }
        } onCancel: {
            refuse(id, PostgresError(.cancelled, "the task was cancelled"))
        }
        return try result.get()
    }

    /// Lets a caller wait, unless something has become free since it asked.
    private func enlist(_ id: Int, _ waiter: Waiter) {
        let action = state.withLock { state in
            let action = state.connectionWanted()
            if case .wait = action { state.waiterArrived(id, waiter) }
            return action
        }
        switch action {
        case .grant(let grant): waiter.resume(returning: .success(grant))
        case .refuse: waiter.resume(returning: .failure(Self.closedError))
        case .wait:
            // Cancelled before it was enlisted: nobody else would refuse it before its time is up.
            if Task.isCancelled { refuse(id, PostgresError(.cancelled, "the task was cancelled")) }
        }
    }

    private func refuse(_ id: Int, _ error: PostgresError) {
        state.withLock { $0.waiterLeft(id) }?.resume(returning: .failure(error))
    }
}
