import Synchronization

/// One connection to PostgreSQL, owned by an actor on its own thread.
///
/// Concurrent uses wait for one another, in order. A connection that breaks stays broken; ``ConnectionPool`` replaces it.
package actor PostgresConnection {
    private let settings: ConnectionSettings
    private let thread: ConnectionThread
    private let connection: BlockingConnection
    private nonisolated let closed = Atomic(false)
    private nonisolated let mustEndWait = Atomic(false)

    package nonisolated var unownedExecutor: UnownedSerialExecutor {
        // The thread lives at least as long as this actor.
        unsafe thread.asUnownedSerialExecutor()
    }

    /// Connects to the first host that answers and meets the settings. Returns within the connect timeout even if the
    /// resolver or the network blocks.
    ///
    /// - Throws: `connectionFailed` with the cause in libpq's words, `cancelled`; `usage` for a database whose encoding is
    ///   not UTF8, or a pooler that shares sessions.
    package static func connect(_ settings: ConnectionSettings) async throws(PostgresError) -> PostgresConnection {
        let deadline = ContinuousClock.now + settings.connectTimeout
        // libpq would spend the whole time on the first host that does not answer.
        let alternatives = settings.alternatives
        var failures: [PostgresError] = []
        for (number, parameters) in alternatives.enumerated() {
            let share = ContinuousClock.now.duration(to: deadline) / (alternatives.count - number)
            do throws(PostgresError) {
                return try await connect(settings, parameters, within: max(share, .zero))
            } catch {
                failures.append(error)
                // As with libpq, a server that refuses the role or the database ends the search.
                guard error.code == .connectionFailed, error.isRetryable else { break }
            }
        }
        throw PostgresError(connectionFailures: failures)
    }

    private static func connect(
        _ settings: ConnectionSettings,
        _ parameters: [(keyword: String, value: String)],
        within time: Duration
    ) async throws(PostgresError) -> PostgresConnection {
        let attempt = try ConnectionAttempt()
        let connection = try PostgresConnection(settings)
        // Both tasks end on their own. An abandoned attempt closes the connection that it opened.
        let opening = Task {
            let result = await connection.perform(within: time) { connection throws(PostgresError) in
                try connection.open(parameters)
            }
            if !attempt.ended(result) { await connection.close() }
        }
        let timer = Task {
            // Later than libpq's own deadline, whose error is more precise.
            try await Task.sleep(for: time + .milliseconds(100))
            attempt.timePassed()
        }
        defer { timer.cancel() }
        let result = await withTaskCancellationHandler {
            await attempt.result()
        } onCancel: {
            attempt.cancelled()
            opening.cancel()
        }
        try result.get()
        return connection
    }

    private init(_ settings: ConnectionSettings) throws(PostgresError) {
        self.settings = settings
        self.thread = try ConnectionThread()
        self.connection = BlockingConnection(settings, thread)
    }

    deinit {
        thread.stop()
    }

    /// True once the connection broke or was closed.
    package nonisolated var isClosed: Bool { closed.load(ordering: .acquiring) }

    /// The server's version in PostgreSQL's numbering: 150018 is 15.18.
    package var serverVersion: Int { connection.handle.serverVersion }

    /// Closes the connection; every later use throws `connectionLost`.
    package func close() {
        connection.close()
        closed.store(true, ordering: .releasing)
    }

    /// Lends the connection to `body`, on the connection's own thread, with each statement its own transaction.
    ///
    /// - Parameter deadline: for all of `body`; nil uses the deadline of the settings. The statement that runs when it
    ///   passes, or when the task is cancelled, is cancelled on the server.
    /// - Throws: what `body` throws; `timedOut`, `cancelled`, `connectionLost`.
    package func withSession<R: Sendable>(
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(nil, deadline, body)
    }

    /// Runs `body` in a transaction, on the connection's own thread: committed when it returns, rolled back when it
    /// throws. Neither the deadline nor cancellation interrupts a COMMIT that was sent.
    ///
    /// - Parameter deadline: as for `withSession`.
    /// - Throws: what `body` throws; with `isOutcomeUnknown` set, `connectionLost` if the answer to COMMIT was lost, and
    ///   `timedOut` if another process made COMMIT stop waiting for synchronous replication.
    package func transaction<R: Sendable>(
        _ isolation: IsolationLevel = .readCommitted,
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(isolation, deadline, body)
    }

    /// Waits for notifications of the channels that `LISTEN` was executed for on this connection. What has arrived
    /// since the last wait ends it immediately.
    ///
    /// - Returns: the notifications; none if the time has passed, or after ``endWait()``.
    /// - Throws: `connectionLost`, `cancelled`.
    @discardableResult
    package func waitForNotifications(atMost time: Duration) async throws(PostgresError) -> [PostgresNotification] {
        try await perform(within: time) { connection throws(PostgresError) in
            try connection.waitForNotifications { self.mustEndWait.exchange(false, ordering: .acquiringAndReleasing) }
        }.get()
    }

    /// Ends the present or the next ``waitForNotifications(atMost:)``.
    nonisolated func endWait() {
        mustEndWait.store(true, ordering: .releasing)
        thread.wake()
    }

    /// Runs `body` so that its waits resume directly on the connection's thread, without a switch to another thread,
    /// unless another actor requires its own executor. Blocking in `body` delays all uses of the connection.
    package nonisolated func onThread<R>(_ body: () async -> R) async -> R {
        await withTaskExecutorPreference(thread, operation: body)
    }

    // MARK: - For the pool

    /// As `withSession` or `transaction`, but nil if the server had ended the connection before `body` could begin.
    func useUnlessStale<R: Sendable>(
        _ isolation: IsolationLevel?,
        _ deadline: Duration?,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R? {
        guard !connection.isStale() else {
            close()
            return nil
        }
        return try await use(isolation, deadline, body)
    }

    // MARK: - Private parts

    private func use<R: Sendable>(
        _ isolation: IsolationLevel?,
        _ deadline: Duration?,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await perform(within: deadline ?? settings.deadline) { connection throws(PostgresError) in
            try connection.use(isolation, body)
        }.get()
    }

    private func perform<R: Sendable>(
        within time: Duration,
        _ body: @Sendable (BlockingConnection) throws(PostgresError) -> R
    ) async -> Result<R, PostgresError> {
        let context = OperationContext(lasting: time)
        let result: Result<R, PostgresError> = await withTaskCancellationHandler {
            connection.context = context
            do throws(PostgresError) {
                return .success(try body(connection))
            } catch {
                return .failure(error)
            }
        } onCancel: {
            context.cancel()
            thread.wake()
        }
        if connection.handle.isBroken { closed.store(true, ordering: .releasing) }
        return result
    }
}
