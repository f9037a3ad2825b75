package import AccountStore
import AppleTokens
package import Postgres
package import Telemetry

/// The maintenance of the database by the daemons: each task once an interval, by one of them.
///
/// It works in short transactions with pauses in between, on a connection of the pool, and takes no lock that the writer
/// would have to wait for longer than it waits for another batch.
package struct Upkeep: Sendable {
    /// How often.
    package struct Schedule: Sendable {
        /// Between two looks at what is due.
        package var look: Duration = .seconds(60)
        /// Between two times that a task is done.
        package var interval: Duration = .seconds(3_600)
        /// Between two pieces of a task.
        package var pause: Duration = .milliseconds(100)

        /// Once an hour.
        package init() {}
    }

    private let pool: ConnectionPool
    private let policy: MaintenancePolicy
    private let schedule: Schedule
    private let metrics: MaintenanceMetrics
    private let log: Log

    /// Upkeep over connections of `pool`.
    package init(
        pool: ConnectionPool,
        policy: MaintenancePolicy,
        schedule: Schedule = Schedule(),
        metrics: MaintenanceMetrics,
        log: Log
    ) {
        self.pool = pool
        self.policy = policy
        self.schedule = schedule
        self.metrics = metrics
        self.log = log
    }

    /// Works until it is cancelled, whenever the database is the one that it should be.
    ///
    /// - Parameter isReady: whether it is; asked at growing intervals until it is, so that a daemon begins with what is
    ///   due as soon as it is ready itself.
    package func run(while isReady: @Sendable () -> Bool = { true }) async {
        let (shortest, longest) = (Duration.milliseconds(2), Duration.seconds(1))
        var pause = shortest
        while !Task.isCancelled {
            let isReady = isReady()
            if isReady { await once() }
            // A cancelled sleep is the wanted end.
            try? await Task.sleep(for: isReady ? schedule.look : pause)
            pause = isReady ? shortest : min(pause * 2, longest)
        }
    }

    /// Does what is due.
    ///
    /// - Returns: what it did.
    @discardableResult
    func once() async -> MaintenanceEffects {
        var sum = MaintenanceEffects()
        for task in MaintenanceTask.allCases where !Task.isCancelled {
            sum = sum + (await once(task))
        }
        return sum
    }

    // MARK: - Private parts

    /// What one transaction came to.
    private enum Progress {
        case stepped(MaintenanceStep, now: WallTime)
        case taken
        case notDue(finishedAt: WallTime)
    }

    /// Brings a task to its end if it is due.
    private func once(_ task: MaintenanceTask) async -> MaintenanceEffects {
        var sum = MaintenanceEffects()
        var previous: MaintenanceStep?
        do throws(PostgresError) {
            while true {
                switch try await advance(task, after: previous) {
                case .notDue(let finishedAt):
                    metrics.finishedAt.gauge(task.rawValue).set(finishedAt.seconds)
                    report(sum)
                    return sum
                case .taken where previous == nil:
                    metrics.runs.increment(task.rawValue, "elsewhere")
                    return sum
                case .taken:
                    // Another daemon came in between. It began at the beginning: who has come further goes on.
                    break
                case .stepped(let step, let now):
                    count(step.effects)
                    sum = sum + step.effects
                    previous = step
                    if step.isLast {
                        metrics.runs.increment(task.rawValue, "done")
                        metrics.finishedAt.gauge(task.rawValue).set(now.seconds)
                        report(sum)
                        return sum
                    }
                }
                // What is left is due at the next look, here or elsewhere.
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
                "maintenance gave way to somebody who uses the notifications; it tries again soon",
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

    /// One line for each kind of thing that was done.
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
    /// By the names of the metric.
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
    /// For a metric.
    var seconds: Double { Double(microseconds) / 1_000_000 }
}
