package import AccountStore
import AppleTokens
import Basics
package import Postgres
package import Telemetry

/// The regular work in the database: tasks of the whole schema, and the dead letters of this daemon.
package struct MaintenanceService: Sendable {
    private let database: DatabaseMaintenance
    private let letters: LetterSettlement
    private let lastNotifications: LastNotifications

    package init(
        service: IngestService,
        pool: ConnectionPool,
        trust: SigningKeys.Trust,
        policy: MaintenancePolicy,
        metrics: MaintenanceMetrics
    ) {
        database = DatabaseMaintenance(pool: pool, policy: policy, metrics: metrics, log: service.log)
        letters = LetterSettlement(service: service, pool: pool, trust: trust)
        lastNotifications = LastNotifications(service: service, pool: pool)
    }

    package func run() async {
        var letters = letters
        let service = letters.service
        await withTaskGroup { group in
            group.addTask { await database.run { service.storage == .database } }
            group.addTask { await lastNotifications.run() }
            await letters.run()
        }
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
                    for (item, number) in step.effects.counts where number > 0 {
                        metrics.effects.increment(item, by: number)
                    }
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
        let (policy, interval, metrics) = (policy, schedule.interval * task.intervals, metrics)
        return try await pool.transaction { session throws(PostgresError) in
            switch try Maintenance.claim(task, every: interval, in: session) {
            case .heldElsewhere: return .taken
            case .notDue(let finishedAt): return .notDue(finishedAt: finishedAt)
            case .granted(let now, let finishedAt):
                // Even if the step fails, so that a restart does not hide how late the task is.
                if let finishedAt { metrics.finishedAt.gauge(task.rawValue).set(min(finishedAt, now).seconds) }
                let step = try Maintenance.step(of: task, after: previous, policy, now: now, in: session)
                return .stepped(step, now: now)
            }
        }
    }

    private func failed(_ task: MaintenanceTask, _ error: PostgresError) {
        guard error.code != .cancelled else { return }
        // Without a database no task can be completed; another alert says so.
        if !error.isConnectionError { metrics.runs.increment(task.rawValue, "failed") }
        if error.sqlState == .lockNotAvailable {
            log.info(
                "maintenance gave way to another session that uses the notifications; it tries again soon",
                ["task": task.rawValue]
            )
        } else {
            log.warning("maintenance failed; it tries again soon", ["task": task.rawValue, "error": "\(error)"])
        }
    }

    private func report(_ effects: MaintenanceEffects) {
        func notice(_ count: Int, _ message: String, _ fields: KeyValuePairs<String, String>) {
            if count > 0 { log.notice(message, fields) }
        }
        if effects.partitionsCreated > 0 {
            log.info("partitions created ahead", ["partitions": "\(effects.partitionsCreated)"])
        }
        let dropped = effects.partitionsDropped
        notice(
            dropped.count,
            "notifications older than the retention dropped",
            ["partitions": dropped.joined(separator: " ")]
        )
        let (letters, sessions) = (effects.lettersDeleted, effects.sessionsDeleted)
        notice(letters, "resolved dead letters older than the retention deleted", ["dead_letters": "\(letters)"])
        notice(sessions, "ended and expired sessions deleted", ["sessions": "\(sessions)"])
        let deliveries = effects.deliveriesDeleted
        notice(deliveries, "settled deliveries older than the retention deleted", ["deliveries": "\(deliveries)"])
        let signIns = effects.signInsDeleted
        notice(signIns, "sign-ins older than the retention deleted", ["sign_ins": "\(signIns)"])
        notice(effects.codesErased, "codes that were not traded in time erased", ["codes": "\(effects.codesErased)"])
        let (tokens, names) = (effects.refreshTokensDeleted, effects.namesDeleted)
        notice(
            tokens + names,
            "refresh tokens and names without a consent deleted",
            ["refresh_tokens": "\(tokens)", "names": "\(names)"]
        )
        notice(
            effects.accountsErased + effects.tokensErased + effects.lettersErased,
            "personal data of deleted accounts erased",
            [
                "accounts": "\(effects.accountsErased)", "tokens": "\(effects.tokensErased)",
                "dead_letters": "\(effects.lettersErased)",
            ]
        )
    }
}

extension MaintenanceEffects {
    /// By their names in the metric.
    fileprivate var counts: [(String, Int)] {
        [
            ("partitions-created", partitionsCreated), ("partitions-dropped", partitionsDropped.count),
            ("dead-letters-deleted", lettersDeleted), ("sessions-deleted", sessionsDeleted),
            ("accounts-erased", accountsErased), ("tokens-erased", tokensErased),
            ("dead-letters-erased", lettersErased), ("deliveries-deleted", deliveriesDeleted),
            ("sign-ins-deleted", signInsDeleted), ("codes-erased", codesErased),
            ("refresh-tokens-deleted", refreshTokensDeleted), ("names-deleted", namesDeleted),
        ]
    }
}

extension WallTime {
    /// Seconds since 1970, for a metric.
    var seconds: Double { Double(microseconds) / 1_000_000 }
}
