package import AccountStore
import AppleTokens
import Basics
package import Postgres
import Spool
import Synchronization
import Telemetry

/// Stores what the queue contains: group commit over a PostgreSQL connection of its own, or into the spool while there is
/// none.
///
/// A batch is one statement and one transaction. A request is answered when its transaction has been committed, or when the
/// spool's file is on the disk; never before. Under load the next batch is sent while the one before commits.
///
/// Three tasks work together: one takes batches from the queue and stores them, one performs the steps that the
/// ``WriterState`` asks for (connections and the spool), and one answers overdue requests from the spool.
package final class NotificationWriter: Sendable {
    let service: IngestService
    let settings: ConnectionSettings
    /// The stored keys that verify spooled notifications again.
    let trust: SigningKeys.Trust
    let faults: FaultLog
    let committer = Committer(source: .endpoint)
    let spoolCommitter = Committer(source: .spool)
    let wakeup = WakeupEvent()
    /// Work in the database that the next connection must wait for; nil: it is done. `number`: how often work was given.
    private let preparation = Mutex<(number: Int, work: (@Sendable () async throws -> Void)?)>((0, nil))

    /// PostgreSQL answers, but refused what it was to store last, as with a full disk. Only a stored batch shows that it can be
    /// written to: a new connection writes no row.
    private let hasRefused = Atomic(false)

    /// How often the spool directory and an idle connection are checked.
    private static let interval = Duration.seconds(5)

    package init(service: IngestService, settings: ConnectionSettings, trust: SigningKeys.Trust) {
        let hasSpool = service.spool != nil
        self.service = service
        self.trust = trust
        var settings = settings
        // Apple waits for the response. With a spool there is a better one than to wait longer.
        settings.deadline = hasSpool ? .seconds(4) : .seconds(20)
        settings.grace = .seconds(2)
        // A row that an application has locked is waited for more than once: together with others, and then alone.
        settings.lockTimeout = min(settings.lockTimeout, hasSpool ? .seconds(1) : .seconds(3))
        self.settings = settings
        faults = FaultLog(service.log)
    }

    /// Stores what is submitted, until ``finish()``; then stores what waits, and returns.
    ///
    /// While PostgreSQL is away, submissions go to the spool, or are answered 503 if there is none; the connection is tried
    /// again at growing intervals of up to five seconds.
    package func run() async {
        await withTaskGroup { group in
            group.addTask { await self.performSteps() }
            group.addTask { await self.answerOverdue() }
            while let batch = await service.queue.next(atMost: service.limits.batch) {
                await store(batch)
            }
            wakeup.signal()
            // A connection attempt, or the draining of the spool.
            group.cancelAll()
        }
        await service.queue.writer { $0.connection }?.close()
    }

    /// Accepts nothing more; ``run()`` returns once everything that was accepted is stored and answered.
    package func finish() {
        service.close()
        wakeup.signal()
    }

    /// Runs `work` on the database before the next connection is used, or while the present one is; tries again until it
    /// succeeds. It replaces the work that was given before.
    package func prepareAgain(_ work: @escaping @Sendable () async throws -> Void) {
        preparation.withLock { $0 = ($0.number + 1, work) }
        wakeup.signal()
    }

    /// Gives an input to the state, answers the submissions that can't be stored any more, and returns the action.
    @discardableResult
    func apply<R: Sendable>(_ input: (inout WriterState<PostgresConnection>) -> R) -> R {
        let (action, refused) = service.queue.update(input)
        if !refused.isEmpty { answer(refused, unavailable) }
        return action
    }

    // MARK: - Steps

    private func performSteps() async {
        await scanSpool(trying: true)
        var triedAt = ContinuousClock.now
        var (pauses, drainPauses) = (Backoff(), Backoff())
        while true {
            switch service.queue.writer({ $0.nextStep }) {
            case .connect(let afterPause):
                if afterPause {
                    await wakeup.wait(atMost: pauses.next())
                } else {
                    pauses = Backoff()
                }
                await connect()
            case .maintain:
                // A failure is tried again with the next step; the caller that gave the work has reported it.
                try? await prepare()
                do {
                    try await drain()
                    drainPauses = Backoff()
                    await wakeup.wait(atMost: Self.interval)
                    await checkIdleConnection()
                } catch {
                    if !service.isClosed { drainFailed(error) }
                    await wakeup.wait(atMost: drainPauses.next())
                }
            case .end:
                return
            }
            let isDue = .now - triedAt > Self.spoolTrial
            if isDue { triedAt = .now }
            await scanSpool(trying: isDue)
        }
    }

    /// Makes a connection, and uses it for live traffic once it stored the oldest records of the spool.
    private func connect() async {
        do {
            let connection = try await openConnection()
            var hasStored = false
            var fault: (any Error)?
            do {
                hasStored = try await drainOnce(.waiting, on: connection).requests > 0
            } catch let error where error is SpoolError || error is StoredKeysError {
                // A fault of the disk or of the stored keys is no reason to refuse a database that can be written to.
                fault = error
            } catch {
                await connection.close()
                throw error
            }
            // After a failover or a restore, PostgreSQL may lack what it had stored.
            service.durable.forgetAll()
            switch apply({ $0.connected(connection, hasStored: hasStored) }) {
            case .use:
                service.metrics.databaseUp.set(1)
                if hasStored || !hasRefused.load(ordering: .relaxed) { databaseBack() }
            case .discard:
                await connection.close()
            }
            if let fault { drainFailed(fault) }
        } catch {
            guard !service.isClosed else { return }
            apply { $0.connectionFailed() }
            databaseAway(error)
        }
    }

    /// A batch was stored.
    func stored() {
        if hasRefused.load(ordering: .relaxed) { databaseBack() }
    }

    private func databaseBack() {
        hasRefused.store(false, ordering: .relaxed)
        if faults.ended(.database) { service.log.notice("PostgreSQL can be written to again") }
    }

    private func databaseAway(_ error: any Error) {
        service.metrics.databaseUp.set(0)
        let consequence =
            service.spool == nil ? "notifications are answered 503 until it can" : "notifications wait in the spool"
        faults.error(.database, "PostgreSQL can't be written to; \(consequence)", error)
    }

    private func drainFailed(_ error: any Error) {
        faults.error(.database, "what is in the spool can't be stored; trying again", error)
    }

    /// Finds out that PostgreSQL is away before the next notification does.
    private func checkIdleConnection() async {
        switch apply({ $0.idleCheckDue() }) {
        case .none: return
        case .check(let connection):
            do throws(PostgresError) {
                try await connection.withSession { session throws(PostgresError) in
                    try Notifications.checkWritable(in: session)
                }
            } catch {
                if !service.isClosed { await lost(connection, error) }
            }
        }
    }

    func lost(_ connection: PostgresConnection, _ error: any Error) async {
        // The server that follows may lack what this one had stored.
        service.durable.forgetAll()
        switch apply({ $0.connectionLost(connection) }) {
        case .report:
            let refusal = (error as? PostgresError).flatMap { $0.code == .server ? $0.sqlState?.classCode : nil }
            // A new connection finds out itself that the server is read-only (25), or that it stops (57).
            hasRefused.store(refusal.map { $0 != "25" && $0 != "57" } ?? false, ordering: .relaxed)
            databaseAway(error)
        case .none: break
        }
        wakeup.signal()
        await connection.close()
    }

    func openConnection(within time: Duration? = nil) async throws -> PostgresConnection {
        try await prepare()
        var settings = settings
        if let time { settings.connectTimeout = min(time, settings.connectTimeout) }
        let connection = try await PostgresConnection.connect(settings)
        do throws(PostgresError) {
            let now = service.now()
            try await connection.withSession { session throws(PostgresError) in
                try Notifications.checkWritable(in: session)
                try session.execute(script: Notifications.writerSettings)
                try Notifications.ensurePartitions(from: now, through: now, in: session)
                try Notifications.plan(in: session)
            }
        } catch {
            await connection.close()
            throw error
        }
        return connection
    }

    private func prepare() async throws {
        let (number, work) = preparation.withLock { $0 }
        guard let work else { return }
        try await work()
        // Other work may have been given while this was done.
        preparation.withLock { if $0.number == number { $0.work = nil } }
    }
}
