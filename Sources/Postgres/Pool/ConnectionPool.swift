import Synchronization

/// A bounded number of connections, opened when first needed and replaced when they break.
package final class ConnectionPool: Sendable {
    private typealias Grant = PoolGrant<PostgresConnection>
    private typealias Waiter = CheckedContinuation<Result<Grant, PostgresError>, Never>
    private typealias State = PoolState<PostgresConnection, Waiter>

    private let settings: ConnectionSettings
    private let maximum: Int
    private let acquireTimeout: Duration
    private let state: Mutex<State>
    /// The connection that waits for notifications.
    private let listener = Mutex<PostgresConnection?>(nil)

    /// Does not connect yet.
    ///
    /// - Parameter acquireTimeout: how long a caller waits for a connection while all are in use.
    package init(_ settings: ConnectionSettings, maximum: Int, acquireTimeout: Duration = .seconds(5)) {
        precondition(maximum > 0, "a pool needs room for a connection")
        self.settings = settings
        self.maximum = maximum
        self.acquireTimeout = acquireTimeout
        self.state = Mutex(State(maximum: maximum))
    }

    /// Lends a connection to `body`, as `PostgresConnection.withSession` does. A connection that the server ended while it
    /// was idle is replaced before `body` begins.
    ///
    /// - Throws: what `body` throws; `connectionFailed`; `timedOut` also when no connection became free in time.
    package func withSession<R: Sendable>(
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(try await acquire(), nil, deadline, body)
    }

    /// As ``withSession(deadline:_:)``, but returns nil immediately when all connections are in use.
    package func withSessionIfFree<R: Sendable>(
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R? {
        guard let grant = try grantIfFree() else { return nil }
        return try await use(try await connection(grant), nil, deadline, body)
    }

    /// Runs `body` in a transaction, as `PostgresConnection.transaction` does.
    ///
    /// - Throws: as `withSession`, and `connectionLost` with `isOutcomeUnknown`.
    package func transaction<R: Sendable>(
        _ isolation: IsolationLevel = .readCommitted,
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(try await acquire(), isolation, deadline, body)
    }

    /// Lends a connection for several transactions that may change its settings; it is closed afterwards.
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

    /// Waits for notifications, over the only connection of this pool. The wait ends as soon as another caller wants the
    /// connection. Notifications that arrive between two calls end the next one; they are lost with a broken connection.
    ///
    /// - Returns: the notifications; none if the time has passed, or if another caller wanted the connection.
    /// - Throws: `connectionFailed`, `connectionLost`, `cancelled`, `timedOut`.
    package func waitForNotifications(
        of channels: [String],
        atMost time: Duration
    ) async throws(PostgresError) -> [PostgresNotification] {
        precondition(maximum == 1, "several connections would listen, and all but one would keep what they hear")
        let connection = try await acquire()
        listener.withLock { $0 = connection }
        let result: Result<[PostgresNotification], PostgresError>
        do throws(PostgresError) {
            // Without an effect if the connection listens already.
            let script = channels.map { "LISTEN \($0)" }.joined(separator: "; ")
            try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
            // A caller that arrived before it could see the listener.
            let isWanted = state.withLock { $0.hasWaiters }
            result = .success(isWanted ? [] : try await connection.waitForNotifications(atMost: time))
        } catch {
            result = .failure(error)
        }
        listener.withLock { $0 = nil }
        await giveBack(connection)
        return try result.get()
    }

    /// Closes idle connections immediately and the others when they are given back. Waiting and later callers get an error.
    package func close() async {
        let (idle, waiters) = state.withLock { $0.poolClosed() }
        for waiter in waiters { waiter.resume(returning: .failure(Self.closedError)) }
        for connection in idle { await connection.close() }
    }

    // MARK: - Private parts

    private static let closedError = PostgresError(.usage, "the connection pool is closed")

    private func use<R: Sendable>(
        _ first: PostgresConnection,
        _ isolation: IsolationLevel?,
        _ deadline: Duration?,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        var connection = first
        while true {
            do throws(PostgresError) {
                let result = try await connection.useUnlessStale(isolation, deadline, body)
                await giveBack(connection)
                if let result { return result }
            } catch {
                // A session that started read only stays so, even after the database accepts writes again.
                if error.sqlState == .readOnlyTransaction { await connection.close() }
                await giveBack(connection)
                throw error
            }
            connection = try await acquire()
        }
    }

    private func acquire() async throws(PostgresError) -> PostgresConnection {
        if let grant = try grantIfFree() { return try await connection(grant) }
        return try await connection(try await waitForGrant())
    }

    /// nil if the caller would have to wait.
    private func grantIfFree() throws(PostgresError) -> Grant? {
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
                await perform(state.withLock { $0.connectionLost() })
                throw error
            }
        }
    }

    private func giveBack(_ connection: PostgresConnection) async {
        let isClosed = connection.isClosed
        await perform(state.withLock { isClosed ? $0.connectionLost() : $0.connectionReturned(connection) })
    }

    private func perform(_ action: State.ReturnAction) async {
        switch action {
        case .resume(let waiter, let grant): waiter.resume(returning: .success(grant))
        case .close(let connection): await connection.close()
        case .nothing: break
        }
    }

    private func waitForGrant() async throws(PostgresError) -> Grant {
        let id = state.withLock { $0.nextWaiterID() }
        let timeout = PostgresError(
            .timedOut,
            "all \(maximum) connections to PostgreSQL stayed in use; allow more or try again later"
        )
        // Cancelled when this function returns.
        let timer = Task {
            try await Task.sleep(for: acquireTimeout)
            fail(id, timeout)
        }
        defer { timer.cancel() }
        let result: Result<Grant, PostgresError> = await withTaskCancellationHandler {
            await withCheckedContinuation { waiter in enqueue(id, waiter) }
        } onCancel: {
            fail(id, .taskCancelled)
        }
        return try result.get()
    }

    /// Makes a caller wait, unless a connection has become free since it asked.
    private func enqueue(_ id: Int, _ waiter: Waiter) {
        let action = state.withLock { state in
            let action = state.connectionWanted()
            if case .wait = action { state.waiterArrived(id, waiter) }
            return action
        }
        switch action {
        case .grant(let grant): waiter.resume(returning: .success(grant))
        case .refuse: waiter.resume(returning: .failure(Self.closedError))
        case .wait:
            listener.withLock { $0 }?.endWait()
            // If the task was cancelled before the waiter was enqueued, the cancellation handler did not find it.
            if Task.isCancelled { fail(id, .taskCancelled) }
        }
    }

    private func fail(_ id: Int, _ error: PostgresError) {
        state.withLock { $0.waiterLeft(id) }?.resume(returning: .failure(error))
    }
}
