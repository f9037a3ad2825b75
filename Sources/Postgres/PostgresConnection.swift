import Synchronization

/// One connection to PostgreSQL, owned by an actor on a thread of its own.
///
/// Uses of it wait for one another in order. A connection that breaks stays broken; ``ConnectionPool`` replaces such.
package actor PostgresConnection {
    private let settings: ConnectionSettings
    private let thread: ConnectionThread
    private let link: Link
    private nonisolated let closed = Atomic(false)

    /// The thread that everything here runs on.
    package nonisolated var unownedExecutor: UnownedSerialExecutor {
        unsafe thread.asUnownedSerialExecutor()
    }

    /// Connects to the first host that answers and fits. Returns within the settings' connect timeout even if the resolver
    /// or the network blocks.
    ///
    /// - Throws: `connectionFailed` with the cause in libpq's words, `cancelled`; `usage` for a database that can't hold
    ///   every text.
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
                guard error.code == .connectionFailed else { break }
            }
        }
        guard failures.count > 1 else { throw failures.first ?? PostgresError(connectionFailures: []) }
        throw PostgresError(connectionFailures: failures)
    }

    private static func connect(
        _ settings: ConnectionSettings,
        _ parameters: [(keyword: String, value: String)],
        within time: Duration
    ) async throws(PostgresError) -> PostgresConnection {
        let attempt = try ConnectionAttempt()
        let connection = try PostgresConnection(settings)
        // Both tasks end by themselves. An abandoned attempt closes the connection that it opened.
        let opening = Task {
            if await !attempt.ended(connection.open(parameters, within: time)) { await connection.close() }
        }
        let timer = Task {
            // Later than libpq's own deadline, whose error says more.
            try await Task.sleep(for: time + tardiness)
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

    private static let tardiness = Duration.milliseconds(100)

    private func open(
        _ parameters: [(keyword: String, value: String)],
        within time: Duration
    ) async -> Result<Void, PostgresError> {
        do throws(PostgresError) {
            return .success(try await use(lasting: time) { link throws(PostgresError) in try link.open(parameters) })
        } catch {
            return .failure(error)
        }
    }

    private init(_ settings: ConnectionSettings) throws(PostgresError) {
        self.settings = settings
        self.thread = try ConnectionThread()
        self.link = Link(settings, thread)
    }

    deinit {
        thread.stop()
    }

    /// Whether the connection broke or was closed.
    package nonisolated var isClosed: Bool { closed.load(ordering: .acquiring) }

    /// The server's version as PostgreSQL counts: 150018 is 15.18.
    package var serverVersion: Int { link.serverVersion }

    /// Closes the connection; every later use throws `connectionLost`.
    package func close() {
        link.close()
        closed.store(true, ordering: .releasing)
    }

    /// Lends the connection to `body`, on the connection's own thread, each statement a transaction of its own.
    ///
    /// - Parameter deadline: for all of `body`; nil takes the settings'. A statement under way when it passes, or when
    ///   the task is cancelled, is cancelled on the server.
    /// - Throws: what `body` throws; `timedOut`, `cancelled`, `connectionLost`.
    package func withSession<R: Sendable>(
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(lasting: deadline ?? settings.deadline) { link throws(PostgresError) in
            try link.session(body)
        }
    }

    /// Runs `body` in a transaction, on the connection's own thread: committed when it returns, rolled back when it
    /// throws. Once COMMIT is sent neither the deadline nor cancellation interrupts it.
    ///
    /// - Parameter deadline: as for `withSession`.
    /// - Throws: what `body` throws; `connectionLost` with `isOutcomeUnknown` when the answer to COMMIT was lost; `timedOut`
    ///   with it when somebody else had COMMIT stop waiting for synchronous replication.
    package func transaction<R: Sendable>(
        _ isolation: IsolationLevel = .readCommitted,
        deadline: Duration? = nil,
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        try await use(lasting: deadline ?? settings.deadline) { link throws(PostgresError) in
            try link.transaction(isolation, body)
        }
    }

    /// Runs `body`, whose waits end on the connection's own thread, unless another actor asks for something else: who ends
    /// one wakes that thread, and no other before it. What blocks there holds up all uses of the connection.
    package nonisolated func onThread<R>(_ body: () async -> R) async -> R {
        await withTaskExecutorPreference(thread, operation: body)
    }

    // MARK: - For the pool

    /// As `withSession` or `transaction`, but nil if the server had ended the connection before `body` could begin.
    func unlessStale<R: Sendable>(
        deadline: Duration?,
        _ body: @Sendable (Link) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R? {
        guard !link.isStale() else {
            close()
            return nil
        }
        return try await use(lasting: deadline ?? settings.deadline, body)
    }

    private func use<R: Sendable>(
        lasting time: Duration,
        _ body: (Link) throws(PostgresError) -> R
    ) async throws(PostgresError) -> R {
        let call = Call(lasting: time)
        let result: Result<R, PostgresError> = await withTaskCancellationHandler {
            link.call = call
            do throws(PostgresError) {
                return .success(try body(link))
            } catch {
                return .failure(error)
            }
        } onCancel: {
            call.cancel()
            thread.wake()
        }
        if link.isClosed { closed.store(true, ordering: .releasing) }
        return try result.get()
    }
}
