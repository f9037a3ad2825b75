import AccountStore
import AppleNotifications
public import Postgres
import Spool
import Synchronization
import Telemetry

/// The one consumer of an intake's queue: group commit over a PostgreSQL connection of its own, or into the spool while
/// there is none.
///
/// A batch is one statement and, being its own transaction, one round trip with its commit. Whoever waits for it is
/// answered when that has returned, or when the spool's file is on the disk; never before.
public final class NotificationWriter: Sendable {
    /// What the two tasks of the writer tell each other.
    struct Line {
        /// Where batches go; nil while PostgreSQL is away.
        var connection: PostgresConnection?
        /// Whether it stored anything since it was made.
        var hasStored = false
        /// Whether it was used since it was last looked at.
        var isInUse = false
        /// The months that need not be asked for on it.
        var partitions = PartitionHorizon()
        /// What the database has to be told before anything is stored; nil once that is done.
        var preparation: (@Sendable () async throws -> Void)?
        var databaseComplaint = Complaint()
        var spoolComplaint = Complaint()
        var refusalComplaint = Complaint()
    }

    /// A connection that breaks sooner than this was broken before; then another try costs nobody much time.
    private static let promptly = Duration.seconds(1)

    let intake: Intake
    let settings: ConnectionSettings
    let line: Mutex<Line>
    /// Wakes the task that sees to the connection and the spool.
    let alarm = Alarm()

    /// A writer for `intake`.
    ///
    /// - Parameter preparation: what the database has to be told once before anything is stored; tried again, with the
    ///   connection, until it succeeds.
    public init(
        intake: Intake,
        settings: ConnectionSettings,
        preparation: (@Sendable () async throws -> Void)? = nil
    ) {
        self.intake = intake
        var settings = settings
        // Apple waits for the answer. With a spool there is a better one than to go on waiting.
        settings.deadline = intake.spool == nil ? .seconds(20) : .seconds(4)
        settings.grace = .seconds(2)
        self.settings = settings
        line = Mutex(Line(preparation: preparation))
    }

    /// Stores what comes in, until ``finish()``; then stores what waits, and returns.
    ///
    /// While PostgreSQL is away, what comes in goes to the spool, or is answered 503 where there is none; the connection
    /// is tried again at growing intervals of up to five seconds.
    public func run() async {
        await withTaskGroup { group in
            group.addTask { await self.recover() }
            while let batch = await intake.queue.next(atMost: intake.limits.batch) {
                if let connection = line.withLock({ $0.connection }) {
                    await store(batch, on: connection)
                } else {
                    await spool(batch)
                }
            }
            alarm.ring()
            // A connection attempt, or the storing of what is in the spool anyway.
            group.cancelAll()
        }
        await line.withLock { $0.connection.take() }?.close()
        answerUnavailable(intake.queue.pause())
    }

    /// Takes nothing more in; ``run()`` returns once everything taken in is stored and answered.
    public func finish() {
        intake.close()
        alarm.ring()
    }

    /// Has something told to the database before the next connection is used, unless it succeeds earlier.
    public func prepareAgain(_ preparation: @escaping @Sendable () async throws -> Void) {
        line.withLock { $0.preparation = preparation }
    }

    /// Stores a batch in one transaction.
    ///
    /// - Throws: when PostgreSQL, not the data, is the matter. The batch may be stored again then.
    static func commit(
        _ batch: [Submission],
        from source: NotificationSource,
        on connection: PostgresConnection,
        _ partitions: PartitionHorizon
    ) async throws(PostgresError) -> [Settled] {
        let missing = partitions.missing(for: batch)
        return try await connection.withSession { session throws(PostgresError) in
            for stretch in missing {
                try Notifications.ensurePartitions(from: stretch.from, through: stretch.through, in: session)
            }
            let store = BatchStore(source: source)
            do throws(PostgresError) {
                return try store.store(batch, in: session)
            } catch let error where error.isMissingPartition {
                // Somebody dropped one that was there.
                for stretch in PartitionHorizon().missing(for: batch) {
                    try Notifications.ensurePartitions(from: stretch.from, through: stretch.through, in: session)
                }
                return try store.store(batch, in: session)
            }
        }
    }

    // MARK: - Private parts

    private func store(_ batch: [Submission], on connection: PostgresConnection) async {
        let start = ContinuousClock.now
        do throws(PostgresError) {
            try await store(batch, on: connection, since: start)
        } catch let error where error.isConnectionError && .now - start < Self.promptly && !Task.isCancelled {
            // A server that was restarted, or that ended an idle connection, is back at once more often than not; the
            // batch is idempotent, even if its commit went through.
            intake.log.warning("the connection to PostgreSQL broke; connecting again", ["error": "\(error)"])
            await storeAnew(batch, replacing: connection, since: start)
        } catch {
            await lost(connection, error)
            await spool(batch)
        }
    }

    private func storeAnew(
        _ batch: [Submission],
        replacing broken: PostgresConnection,
        since start: ContinuousClock.Instant
    ) async {
        var current = broken
        do {
            let fresh = try await connect(within: Self.promptly)
            await broken.close()
            line.withLock { line in
                if line.connection === broken { line.connection = fresh }
            }
            current = fresh
            try await store(batch, on: fresh, since: start)
        } catch {
            await lost(current, error)
            await spool(batch)
        }
    }

    private func store(
        _ batch: [Submission],
        on connection: PostgresConnection,
        since start: ContinuousClock.Instant
    ) async throws(PostgresError) {
        let partitions = line.withLock { $0.partitions }
        let settled = try await Self.commit(batch, from: .endpoint, on: connection, partitions)
        line.withLock { line in
            line.hasStored = true
            line.isInUse = true
            line.partitions.ensured(partitions.missing(for: batch))
        }
        settled.map { ($0.submission, $0.answer) }.deliver()
        intake.measure(settled, since: start)
    }

    /// Answers a batch from the spool, or 503.
    private func spool(_ batch: [Submission]) async {
        guard let spool = intake.spool else { return answerUnavailable(batch) }
        do {
            try await spool.append(batch.map { SpoolRecord($0) })
        } catch {
            spoolFailed(error)
            return answerUnavailable(batch)
        }
        batch.map { ($0, $0.work.answerWhenDurable) }.deliver()
        intake.metrics.spooled.increment(by: batch.count)
        spoolSucceeded()
    }

    /// Answers 503, and takes back what was reserved.
    func answerUnavailable(_ batch: [Submission]) {
        for case .deadLetter(let letter, _) in batch.map(\.work) {
            intake.giveUp(letter)
        }
        let answer: Answer =
            intake.isClosed
            ? .unavailable(.shuttingDown, retryAfterSeconds: 5)
            : .unavailable(.databaseUnavailable, retryAfterSeconds: 5)
        batch.map { ($0, answer) }.deliver()
    }
}

extension Submission.Work {
    /// What to answer once it is durable.
    fileprivate var answerWhenDurable: Answer {
        switch self {
        case .notification: .acknowledged
        case .deadLetter(_, let answer): answer
        }
    }
}
