package import AccountStore
import AppleTokens
package import Postgres
import Spool
package import Telemetry

/// The regular work in the database: tasks of the whole schema, and the dead letters of this daemon.
package struct MaintenanceService: Sendable {
    private let service: IngestService
    private let database: DatabaseMaintenance
    private let letters: LetterMaintenance

    /// - Parameters:
    ///   - pool: provides the connections.
    ///   - trust: the stored keys that are trusted.
    package init(
        service: IngestService,
        pool: ConnectionPool,
        trust: SigningKeys.Trust,
        policy: MaintenancePolicy,
        metrics: MaintenanceMetrics
    ) {
        self.service = service
        database = DatabaseMaintenance(pool: pool, policy: policy, metrics: metrics, log: service.log)
        letters = LetterMaintenance(service: service, pool: pool, trust: trust)
    }

    /// Works until it is cancelled.
    package func run() async {
        await withTaskGroup { group in
            group.addTask { await letters.run() }
            group.addTask { await database.run { service.storage == .database } }
        }
    }
}

/// Counts the open dead letters, and settles the unverified ones, regularly and whenever another key set is in force.
struct LetterMaintenance: Sendable {
    let service: IngestService
    let pool: ConnectionPool
    let trust: SigningKeys.Trust
    var interval = Duration.seconds(5)

    /// Works until it is cancelled.
    func run() async {
        var settlement = LetterSettlement(service: service, pool: pool, trust: trust)
        var repeated = RateLimitedLog()
        while !Task.isCancelled {
            if let open = await count(), open[.keysUnavailable, default: 0] > 0, service.storage == .database {
                do {
                    let effects = try await settlement.settle()
                    _ = repeated.reset()
                    if !effects.isNone { await report(effects) }
                } catch {
                    // Some letters may be settled already.
                    service.durable.forget(.unverified)
                    if !Task.isCancelled, repeated.isDue("\(error)") {
                        service.log.warning(
                            "letters that were kept because their key was not known could not be settled; trying again",
                            ["error": "\(error)"]
                        )
                    }
                }
            }
            await service.keys.replacement.wait(atMost: interval)
        }
    }

    /// - Returns: nil if the count failed, which the writer reports.
    private func count() async -> [DeadLetterReason: Int]? {
        service.budget.countingBegan()
        guard
            let open = try? await pool.withSession({ session throws(PostgresError) in
                try DeadLetters.countOpen(in: session)
            })
        else { return nil }
        service.budget.counted(open)
        // Another daemon or an operator may have settled any of them since the last count.
        service.durable.forget(.unverified)
        for reason in DeadLetterReason.allCases {
            service.metrics.deadLetters.gauge(reason.rawValue).set(open[reason, default: 0])
        }
        return open
    }

    private func report(_ effects: LetterSettlement.Effects) async {
        service.log.notice(
            "letters that were kept because their key was not known were settled",
            ["replayed": "\(effects.replayed)", "discarded": "\(effects.discarded)"]
        )
        // There is room again.
        _ = await count()
    }
}

/// Deletes and creates what is due in the database: each task once an interval, by one of several daemons.
///
/// It works in short transactions with pauses in between, on a connection of the pool, and holds no lock for longer than a
/// batch of the writer takes.
struct DatabaseMaintenance: Sendable {
    struct Schedule: Sendable {
        /// Between two checks for due tasks.
        var check: Duration = .seconds(60)
        /// Between two runs of a task.
        var interval: Duration = .seconds(3_600)
        /// Between two transactions of a task.
        var pause: Duration = .milliseconds(100)
    }

    let pool: ConnectionPool
    let policy: MaintenancePolicy
    var schedule = Schedule()
    let metrics: MaintenanceMetrics
    let log: Log

    /// Works until it is cancelled.
    ///
    /// - Parameter isReady: whether the database is connected and has the right schema; asked at growing intervals until it
    ///   is, so that due tasks begin as soon as the daemon is ready.
    func run(while isReady: @Sendable () -> Bool = { true }) async {
        let (shortest, longest) = (Duration.milliseconds(2), Duration.seconds(1))
        var pause = shortest
        while !Task.isCancelled {
            let isReady = isReady()
            if isReady { await once() }
            // A cancelled sleep ends the loop.
            try? await Task.sleep(for: isReady ? schedule.check : pause)
            pause = isReady ? shortest : min(pause * 2, longest)
        }
    }

    /// Runs the tasks that are due.
    @discardableResult
    func once() async -> MaintenanceEffects {
        var sum = MaintenanceEffects()
        for task in MaintenanceTask.allCases where !Task.isCancelled {
            sum = sum + (await once(task))
        }
        return sum
    }

    // MARK: - Private parts

    private enum Progress {
        case stepped(MaintenanceStep, now: WallTime)
        /// Another daemon runs a task at present.
        case taken
        case notDue(finishedAt: WallTime)
    }

    /// Runs a task to its end if it is due.
    private func once(_ task: MaintenanceTask) async -> MaintenanceEffects {
        var sum = MaintenanceEffects()
        var previous: MaintenanceStep?
        do throws(PostgresError) {
            transactions: while true {
                switch try await advance(task, after: previous) {
                case .notDue(let finishedAt):
                    metrics.finishedAt.gauge(task.rawValue).set(finishedAt.seconds)
                    break transactions
                case .taken where previous == nil:
                    metrics.runs.increment(task.rawValue, "elsewhere")
                    break transactions
                case .taken:
                    // Another daemon came in between and began from the start: this one is ahead and continues.
                    break
                case .stepped(let step, let now):
                    count(step.effects)
                    sum = sum + step.effects
                    previous = step
                    if step.isLast {
                        metrics.runs.increment(task.rawValue, "done")
                        metrics.finishedAt.gauge(task.rawValue).set(now.seconds)
                        break transactions
                    }
                }
                // The rest is due at the next check, here or elsewhere.
                if (try? await Task.sleep(for: schedule.pause)) == nil { break }
            }
        } catch {
            failed(task, error)
        }
        report(sum)
        return sum
    }

    private func advance(
        _ task: MaintenanceTask,
        after previous: MaintenanceStep?
    ) async throws(PostgresError) -> Progress {
        let (policy, interval) = (policy, schedule.interval * task.intervals)
        return try await pool.transaction { session throws(PostgresError) in
            switch try Maintenance.claim(task, every: interval, in: session) {
            case .heldElsewhere: return .taken
            case .notDue(let finishedAt): return .notDue(finishedAt: finishedAt)
            case .granted(let now):
                let step = try Maintenance.step(of: task, after: previous, policy, now: now, in: session)
                return .stepped(step, now: now)
            }
        }
    }

    private func failed(_ task: MaintenanceTask, _ error: PostgresError) {
        guard error.code != .cancelled else { return }
        metrics.runs.increment(task.rawValue, "failed")
        if error.sqlState == .lockNotAvailable {
            log.info(
                "maintenance gave way to another session that uses the notifications; it tries again soon",
                ["task": task.rawValue]
            )
        } else {
            log.warning("maintenance failed; it tries again soon", ["task": task.rawValue, "error": "\(error)"])
        }
    }

    private func count(_ effects: MaintenanceEffects) {
        for (item, number) in effects.counts where number > 0 {
            metrics.effects.increment(item, by: number)
        }
    }

    /// Logs one line for each kind of effect.
    private func report(_ effects: MaintenanceEffects) {
        if effects.partitionsCreated > 0 {
            log.info("partitions created ahead", ["partitions": "\(effects.partitionsCreated)"])
        }
        if !effects.partitionsDropped.isEmpty {
            log.notice(
                "notifications older than the retention dropped",
                ["partitions": effects.partitionsDropped.joined(separator: " ")]
            )
        }
        if effects.lettersDeleted > 0 {
            log.notice(
                "resolved dead letters older than the retention deleted",
                ["dead_letters": "\(effects.lettersDeleted)"]
            )
        }
        if effects.sessionsDeleted > 0 {
            log.notice("ended and expired sessions deleted", ["sessions": "\(effects.sessionsDeleted)"])
        }
        if effects.accountsErased + effects.tokensErased + effects.lettersErased > 0 {
            log.notice(
                "personal data of deleted accounts erased",
                [
                    "accounts": "\(effects.accountsErased)", "tokens": "\(effects.tokensErased)",
                    "dead_letters": "\(effects.lettersErased)",
                ]
            )
        }
    }
}

extension MaintenanceEffects {
    /// By their names in the metric.
    fileprivate var counts: [(String, Int)] {
        [
            ("partitions-created", partitionsCreated), ("partitions-dropped", partitionsDropped.count),
            ("dead-letters-deleted", lettersDeleted), ("sessions-deleted", sessionsDeleted),
            ("accounts-erased", accountsErased), ("tokens-erased", tokensErased),
            ("dead-letters-erased", lettersErased),
        ]
    }
}

extension WallTime {
    /// Seconds since 1970, for a metric.
    var seconds: Double { Double(microseconds) / 1_000_000 }
}
