package import AccountStore
import AppleTokens
package import Postgres
import Spool
import Synchronization
import Telemetry

/// The one consumer of an intake's queue: group commit over a PostgreSQL connection of its own, or into the spool while
/// there is none.
///
/// A batch is one statement and a transaction of its own. Whoever waits for it is answered when that has been committed,
/// or when the spool's file is on the disk; never before. Under load the next batch is taken and sent while the one before
/// it is being committed: the time that the disk takes is that which the next batch takes to be made.
package final class NotificationWriter: Sendable {
    /// What the two tasks of the writer tell each other.
    struct Line {
        /// Where batches go; nil while PostgreSQL is away.
        var connection: PostgresConnection?
        /// Whether it stored anything since it was made.
        var hasStored = false
        /// Whether of the last batch on it nothing could be stored, though it didn't break.
        var wasBarren = false
        /// Whether it was used since it was last looked at.
        var isInUse = false
        /// The months that need not be asked for on it.
        var partitions = PartitionHorizon()
        /// What the database has to be told before anything is stored on the next connection; nil once that is done.
        var preparation: Preparation?
        /// How many there were.
        var preparations = 0
        var databaseComplaint = Complaint()
        var spoolComplaint = Complaint()
        var refusalComplaint = Complaint()
        var rejectionComplaint = Complaint()
        var unreadComplaint = Complaint()
        var shareComplaint = Complaint()
        var untrustedComplaint = Complaint()
        var unverifiedComplaint = Complaint()
        var overdueComplaint = Complaint()
    }

    /// Something that the database has to be told.
    struct Preparation {
        /// Another one for each.
        let number: Int
        let work: @Sendable () async throws -> Void
    }

    let intake: Intake
    let settings: ConnectionSettings
    /// The stored keys that verify again what is in the spool.
    let trust: SigningKeys.Trust
    let line: Mutex<Line>
    /// Wakes the task that sees to the connection and the spool.
    let alarm = Alarm()

    /// A writer for `intake`.
    ///
    /// - Parameters:
    ///   - trust: the stored keys that verify again what is in the spool.
    ///   - preparation: what the database has to be told once before anything is stored; tried again, with the connection,
    ///     until it succeeds.
    package init(
        intake: Intake,
        settings: ConnectionSettings,
        trust: SigningKeys.Trust,
        preparation: (@Sendable () async throws -> Void)? = nil
    ) {
        self.intake = intake
        self.trust = trust
        var settings = settings
        // Apple waits for the answer. With a spool there is a better one than to go on waiting.
        settings.deadline = intake.spool == nil ? .seconds(20) : .seconds(4)
        settings.grace = .seconds(2)
        // A row that an application has locked is waited for more than once: together with others, and then alone.
        settings.lockTimeout = min(settings.lockTimeout, intake.spool == nil ? .seconds(3) : .seconds(1))
        self.settings = settings
        line = Mutex(Line(preparation: preparation.map { Preparation(number: 0, work: $0) }))
    }

    /// Stores what comes in, until ``finish()``; then stores what waits, and returns.
    ///
    /// While PostgreSQL is away, what comes in goes to the spool, or is answered 503 where there is none; the connection
    /// is tried again at growing intervals of up to five seconds.
    package func run() async {
        await withTaskGroup { group in
            group.addTask { await self.recover() }
            group.addTask { await self.answerOverdue() }
            while let batch = await intake.queue.next(atMost: intake.limits.batch) {
                await store(batch)
            }
            alarm.ring()
            // A connection attempt, or the storing of what is in the spool anyway.
            group.cancelAll()
        }
        await line.withLock { $0.connection.take() }?.close()
        answerUnavailable(intake.queue.pause())
    }

    /// Takes nothing more in; ``run()`` returns once everything taken in is stored and answered.
    package func finish() {
        intake.close()
        alarm.ring()
    }

    /// Has something told to the database before the next connection is used, or while the present one is; tried again
    /// until it succeeds. It takes the place of what was to be told before.
    package func prepareAgain(_ work: @escaping @Sendable () async throws -> Void) {
        line.withLock { line in
            line.preparations += 1
            line.preparation = Preparation(number: line.preparations, work: work)
        }
        alarm.ring()
    }

    // MARK: - Without PostgreSQL

    /// Answers 503, and takes back what was reserved.
    ///
    /// - Parameters:
    ///   - answer: nil: that nothing can be stored at present.
    ///   - isEarly: the writer works on the batch at the same time; what it reserved stays reserved until it is done.
    func answerUnavailable(_ batch: [Submission], _ answer: Answer? = nil, isEarly: Bool = false) {
        if !isEarly {
            for case .deadLetter(let letter, _) in batch.map(\.work) { intake.giveUp(letter) }
        }
        let usual: Answer =
            intake.isClosed
            ? .unavailable(.shuttingDown, retryAfterSeconds: 5)
            : .unavailable(.databaseUnavailable, retryAfterSeconds: 5)
        let answer = answer ?? usual
        self.answer(batch.map { ($0, answer) }, isEarly: isEarly)
    }

    /// Delivers the answers of submissions that have none yet.
    ///
    /// - Parameter isEarly: the writer still works on them; otherwise they are finished.
    func answer(_ answers: [(Submission, Answer)], isEarly: Bool = false) {
        (isEarly ? intake.queue.answeredEarly(answers) : intake.queue.finished(answers)).deliver()
    }
}

extension Submission.Work {
    /// What to answer once it is durable.
    var answerWhenDurable: Answer {
        switch self {
        case .notification: .acknowledged
        case .deadLetter(_, let answer): answer
        }
    }
}
