package import AppleTokens
package import Postgres

/// The keeping of the database: partitions ahead, retention, erasure. Each step is one short transaction, so that nothing
/// waits for it; whatever is interrupted is carried on by the next step.
package enum Maintenance {
    /// Accounts whose data are erased in one transaction.
    static let accountsAtOnce: Int64 = 100
    /// Pages of accounts that are scanned in one transaction: 16 MiB, less than a hundred thousand people.
    static let pagesAtOnce: Int64 = 2_048
    /// Pages of sessions that are scanned in one transaction: 2 MiB, less than twenty thousand sessions.
    static let sessionPagesAtOnce: Int64 = 256
    /// Dead letters that are deleted or erased in one transaction.
    static let lettersAtOnce: Int64 = 500

    /// Asks to do a task, in the transaction that does it: among all daemons one at a time may, and none before
    /// `interval` has passed since it was last finished. What was finished in the future, by a clock that had run ahead,
    /// is due: that future may be years away.
    package static func turn(
        for task: MaintenanceTask,
        every interval: Duration,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceTurn {
        // The lock first, on its own: what it protects is read by the next statement's snapshot.
        guard try transaction.execute(lock).bool(0, 0) else { return .taken }
        let rows = try transaction.execute(lastTime, Binds { $0.append(task.rawValue) })
        let now = try rows.time(0, 0)
        if let finishedAt = try rows.optionalTime(0, 1), finishedAt <= now, now.duration(since: finishedAt) < interval {
            return .notDue(finishedAt: finishedAt)
        }
        return .ours(now: now)
    }

    /// Does the next piece of a task, and writes down that it is finished with the last.
    ///
    /// - Parameters:
    ///   - previous: the piece before, done by the same daemon; nil for the first.
    ///   - now: what the ages are counted to.
    /// - Throws: SQLSTATE 55P03 when somebody has been reading notifications for so long that dropping a partition would
    ///   have writers wait: try again later.
    package static func step(
        of task: MaintenanceTask,
        after previous: MaintenanceStep? = nil,
        _ policy: MaintenancePolicy,
        now: WallTime,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        let step =
            switch task {
            case .partitions: try partitions(now, in: transaction)
            case .retention: try retention(now - policy.retention, in: transaction)
            case .sessions: try sessions(now - policy.sessionRetention, from: previous?.nextPage ?? 0, in: transaction)
            case .erasure: try erasure(now - policy.eraseAfter, now, from: previous?.nextPage ?? 0, in: transaction)
            }
        if step.isLast {
            _ = try transaction.execute(
                finish,
                Binds {
                    $0.append(task.rawValue)
                    $0.append(Timestamp(now))
                }
            )
        }
        return step
    }

    /// When each task was last finished; those that never were are left out.
    package static func lastTimes(in session: borrowing Session) throws(PostgresError) -> [MaintenanceTask: WallTime] {
        let rows = try session.execute(lastTimes)
        var times: [MaintenanceTask: WallTime] = [:]
        for row in 0..<rows.count {
            guard let task = MaintenanceTask(rawValue: try rows.string(row, 0)) else { continue }
            times[task] = try rows.time(row, 1)
        }
        return times
    }

    private static let lock = Statement("SELECT pg_try_advisory_xact_lock(hashtextextended('siwa.maintenance', 0))")

    /// Not `now()`, which is when the transaction began: another daemon may have begun and finished the task since.
    private static let lastTime = Statement(
        "SELECT statement_timestamp(), (SELECT finished_at FROM siwa.maintenance WHERE task = $1)"
    )

    private static let lastTimes = Statement(once: "SELECT task, finished_at FROM siwa.maintenance")

    private static let finish = Statement(
        """
        INSERT INTO siwa.maintenance (task, finished_at) VALUES ($1, $2)
        ON CONFLICT (task) DO UPDATE SET finished_at = excluded.finished_at
        """
    )
}

// MARK: - Partitions and retention

extension Maintenance {
    private static func partitions(
        _ now: WallTime,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        var effects = MaintenanceEffects()
        let rows = try transaction.execute(createAhead, Binds { $0.append(Timestamp(now)) })
        effects.partitionsCreated = Int(try rows.int32(0, 0))
        return MaintenanceStep(effects: effects, isLast: true)
    }

    private static func retention(
        _ cutoff: WallTime,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        var effects = MaintenanceEffects()
        let dropped = try transaction.execute(dropOldest, Binds { $0.append(Timestamp(cutoff)) })
        if let partition = try dropped.optionalString(0, 0) {
            effects.partitionsDropped = [partition]
            return MaintenanceStep(effects: effects, isLast: false)
        }
        let deleted = try transaction.execute(
            deleteLetters,
            Binds {
                $0.append(Timestamp(cutoff))
                $0.append(lettersAtOnce)
            }
        )
        effects.lettersDeleted = deleted.affectedRows
        return MaintenanceStep(effects: effects, isLast: effects.lettersDeleted < Int(lettersAtOnce))
    }

    /// Deletes the sessions of a stretch of pages that ended or expired before `cutoff`. Whether a session has ended
    /// follows from its account and consent, so no index finds them; one that is younger than the cutoff can't have ended
    /// before it, and is not looked at any further.
    private static func sessions(
        _ cutoff: WallTime,
        from page: Int64,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        // Each session's account and consent are looked up by index, even before the tables are first analysed.
        try transaction.execute(
            script: "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"
        )
        let rows = try transaction.execute(
            deleteSessions,
            Binds {
                $0.append(Timestamp(cutoff))
                $0.append(page)
                $0.append(sessionPagesAtOnce)
            }
        )
        var effects = MaintenanceEffects()
        effects.sessionsDeleted = Int(try rows.int64(0, 0))
        let next = page + sessionPagesAtOnce
        return MaintenanceStep(effects: effects, isLast: next >= (try rows.int64(0, 1)), nextPage: next)
    }

    /// A session that has ended or expired never becomes live again, so none is locked before it is found to be due. One
    /// that an application's transaction holds is left to the next time, rather than waited for.
    private static let deleteSessions = Statement(String(sql: PackageResources.delete_sessions_sql))

    private static let createAhead = Statement(
        "SELECT siwa.ensure_notification_partitions($1, $1 + interval '2 months')"
    )
    private static let dropOldest = Statement("SELECT siwa.drop_notification_partition($1)")

    private static let deleteLetters = Statement(
        """
        DELETE FROM siwa.dead_letters
        WHERE id = ANY (ARRAY(
            SELECT id FROM siwa.dead_letters
            WHERE resolved_at < $1
            ORDER BY resolved_at
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ))
        """
    )
}
