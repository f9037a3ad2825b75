package import Basics
package import Postgres

/// Maintains the database: future partitions, retention, erasure and old sessions. Each step is one short transaction, so that
/// nothing waits long for it. After an interruption, the next step continues.
package enum Maintenance {
    /// The maximum number of accounts that one transaction erases.
    static let accountsAtOnce = 100
    /// The number of pages of accounts that one transaction scans: 16 MiB, fewer than 100,000 people.
    static let pagesAtOnce: Int64 = 2_048
    /// The number of pages of sessions that one transaction scans: 2 MiB, fewer than 20,000 sessions.
    static let sessionPagesAtOnce: Int64 = 256
    /// The maximum number of dead letters that one transaction deletes or erases.
    static let lettersAtOnce = 500
    /// The maximum number of deliveries that one transaction deletes.
    static let deliveriesAtOnce = 500
    /// The maximum number of sign-ins that one transaction deletes.
    static let signInsAtOnce = 1_000
    /// The number of pages of refresh tokens, and of names, that one transaction scans: 4 MiB, fewer than 20,000 tokens.
    static let tokenPagesAtOnce: Int64 = 512
    /// Longer than any code is valid and any exchange takes.
    static let codesLast = Duration.seconds(600)

    /// Claims a task for the transaction that performs it. Only one daemon at a time gets a claim, and only after `interval`
    /// has passed since the task was last finished. A task that was finished in the future, by a clock that was ahead, is
    /// due, because that time may be years away.
    package static func claim(
        _ task: MaintenanceTask,
        every interval: Duration,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceClaim {
        // A statement of its own, so that the snapshot of the next statement is taken after the lock.
        guard try transaction.execute(lock).bool(0, 0) else { return .heldElsewhere }
        let rows = try transaction.execute(lastTime, task.rawValue)
        let now = try rows.time(0, 0)
        let finishedAt = try rows.value(0, 1) as WallTime?
        if let finishedAt, finishedAt <= now, now.duration(since: finishedAt) < interval {
            return .notDue(finishedAt: finishedAt)
        }
        return .granted(now: now, finishedAt: finishedAt)
    }

    /// Performs the next step of a task. The last step also records that the task is finished.
    ///
    /// - Parameter previous: the previous step by the same daemon; nil for the first one.
    /// - Throws: SQLSTATE 55P03 if another session reads notifications, because waiting for it to drop a partition would block
    ///   writers: try again later.
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
            case .deliveries: try deliveries(now - policy.deliveryRetention, in: transaction)
            case .signIns: try signIns(now - policy.signInRetention, now - codesLast, in: transaction)
            case .tokens: try tokens(from: previous?.nextPage ?? 0, in: transaction)
            }
        if step.isLast { _ = try transaction.execute(finish, task.rawValue, now) }
        return step
    }

    /// When each task was last finished; tasks that were never finished are left out.
    package static func lastTimes(in session: borrowing Session) throws(PostgresError) -> [MaintenanceTask: WallTime] {
        let rows = try session.execute(once: "SELECT task, finished_at FROM siwa.maintenance")
        var times: [MaintenanceTask: WallTime] = [:]
        for row in 0..<rows.count {
            guard let task = MaintenanceTask(rawValue: try rows.string(row, 0)) else { continue }
            times[task] = try rows.time(row, 1)
        }
        return times
    }

    // MARK: - Tasks

    private static func partitions(
        _ now: WallTime,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        var effects = MaintenanceEffects()
        effects.partitionsCreated = try transaction.execute(createAhead, now).value(0, 0)
        return MaintenanceStep(effects: effects, isLast: true)
    }

    private static func retention(
        _ cutoff: WallTime,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        var effects = MaintenanceEffects()
        if let partition: String = try transaction.execute(dropOldest, cutoff).value(0, 0) {
            effects.partitionsDropped = [partition]
            return MaintenanceStep(effects: effects, isLast: false)
        }
        effects.lettersDeleted = try transaction.execute(deleteLetters, cutoff, lettersAtOnce).affectedRows
        return MaintenanceStep(effects: effects, isLast: effects.lettersDeleted < lettersAtOnce)
    }

    /// Deletes the sessions in a range of pages that ended or expired before `cutoff`. No index finds them, because the end
    /// of a session follows from its account and consent.
    private static func sessions(
        _ cutoff: WallTime,
        from page: Int64,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        try transaction.execute(script: lookUpByIndex)
        let rows = try transaction.execute(deleteSessions, cutoff, page, sessionPagesAtOnce)
        var effects = MaintenanceEffects()
        effects.sessionsDeleted = try rows.value(0, 0)
        let next = page + sessionPagesAtOnce
        return MaintenanceStep(effects: effects, isLast: next >= (try rows.int64(0, 1)), nextPage: next)
    }

    /// Erases the personal data of people whose Apple Account was deleted.
    ///
    /// A tombstone remains: `team_id`, `sub`, `deleted_at` and the other registers, which determine every state. The address
    /// register is set to infinity, so no address can be stored again. `Notifications.record` stores later notifications
    /// about such a person without their tokens.
    private static func erasure(
        _ cutoff: WallTime,
        _ now: WallTime,
        from page: Int64,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        try transaction.execute(script: lookUpByIndex)
        var effects = MaintenanceEffects()
        let erased = try transaction.execute(eraseAccounts, cutoff, now, accountsAtOnce, page, pagesAtOnce)
        effects.accountsErased = try erased.value(0, 0)
        effects.tokensErased = try erased.value(0, 1)
        if effects.accountsErased == accountsAtOnce {
            return MaintenanceStep(effects: effects, isLast: false, nextPage: try erased.int64(0, 2))
        }
        if page + pagesAtOnce < (try erased.int64(0, 3)) {
            return MaintenanceStep(effects: effects, isLast: false, nextPage: page + pagesAtOnce)
        }

        effects.tokensErased += try transaction.execute(eraseLateTokens, now - .seconds(86_400)).affectedRows
        _ = try transaction.execute(eraseLateDevices, now - .seconds(86_400))
        let letters = try transaction.execute(eraseLetters, lettersAtOnce, erasedNote)
        effects.lettersErased = try letters.value(0, 0)
        let discarded: Int = try letters.value(0, 1)
        if discarded > 0 {
            try OperatorActions.record(
                OperatorAction(
                    operatorName: "siwad",
                    action: "dead-letters discard",
                    target: "letters of accounts that were erased",
                    note: erasedNote,
                    affected: discarded
                ),
                in: transaction
            )
        }
        let isLast = effects.lettersErased < lettersAtOnce
        return MaintenanceStep(effects: effects, isLast: isLast, nextPage: page + pagesAtOnce)
    }

    private static func deliveries(
        _ cutoff: WallTime,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        var effects = MaintenanceEffects()
        effects.deliveriesDeleted = try transaction.execute(deleteDeliveries, cutoff, deliveriesAtOnce).affectedRows
        return MaintenanceStep(effects: effects, isLast: effects.deliveriesDeleted < deliveriesAtOnce)
    }

    private static func signIns(
        _ cutoff: WallTime,
        _ lastCode: WallTime,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        var effects = MaintenanceEffects()
        effects.codesErased = try transaction.execute(eraseCodes, lastCode, signInsAtOnce).affectedRows
        effects.signInsDeleted = try transaction.execute(deleteSignIns, cutoff, signInsAtOnce).affectedRows
        let isLast = max(effects.codesErased, effects.signInsDeleted) < signInsAtOnce
        return MaintenanceStep(effects: effects, isLast: isLast)
    }

    private static func tokens(
        from page: Int64,
        in transaction: borrowing Session
    ) throws(PostgresError) -> MaintenanceStep {
        try transaction.execute(script: lookUpByIndex)
        let rows = try transaction.execute(deleteTokens, page, tokenPagesAtOnce)
        var effects = MaintenanceEffects()
        effects.refreshTokensDeleted = try rows.value(0, 0)
        effects.namesDeleted = try rows.value(0, 1)
        let next = page + tokenPagesAtOnce
        return MaintenanceStep(effects: effects, isLast: next >= (try rows.int64(0, 2)), nextPage: next)
    }

    // MARK: - Statements

    private static let lock = Statement("SELECT pg_try_advisory_xact_lock(hashtextextended('siwa.maintenance', 0))")

    /// Not `now()`, the start of the transaction: another daemon may have finished the task since then.
    private static let lastTime = Statement(
        "SELECT statement_timestamp(), (SELECT finished_at FROM siwa.maintenance WHERE task = $1)"
    )

    private static let finish = Statement(
        """
        INSERT INTO siwa.maintenance (task, finished_at) VALUES ($1, $2)
        ON CONFLICT (task) DO UPDATE SET finished_at = excluded.finished_at
        """
    )

    /// Makes a scan look up the other rows of each row by index, even before the tables are first analysed.
    private static let lookUpByIndex =
        "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"

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

    /// A foreign key deletes the attempts.
    private static let deleteDeliveries = Statement(
        """
        DELETE FROM siwa.deliveries AS d
        USING (
            SELECT endpoint_id, position FROM siwa.deliveries
            WHERE resolved_at < $1
            ORDER BY resolved_at
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ) AS old
        WHERE d.endpoint_id = old.endpoint_id AND d.position = old.position
        """
    )

    private static let deleteSignIns = Statement(
        """
        DELETE FROM siwa.sign_ins
        WHERE sign_in_id = ANY (ARRAY(
            SELECT sign_in_id FROM siwa.sign_ins
            WHERE received_at < $1
            ORDER BY received_at
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        ))
        """
    )
    private static let eraseCodes = Statement(
        """
        UPDATE siwa.sign_ins SET refresh = 'lost', code_sealed = NULL, code_due_at = NULL, lease_until = NULL
        WHERE sign_in_id = ANY (ARRAY(
            SELECT sign_in_id FROM siwa.sign_ins
            WHERE code_due_at IS NOT NULL AND signed_in_at < $1
            LIMIT $2
            FOR NO KEY UPDATE SKIP LOCKED
        ))
        """
    )
    private static let deleteTokens = Statement(String(sql: PackageResources.delete_tokens_sql))

    private static let erasedNote = "erased with the deleted account"
    private static let eraseAccounts = Statement(String(sql: PackageResources.erase_accounts_sql))
    private static let eraseLetters = Statement(String(sql: PackageResources.erase_letters_sql))

    /// Erases the tokens that were recorded while the account was being erased.
    private static let eraseLateTokens = Statement(
        """
        UPDATE siwa.notifications AS n
        SET jws = NULL
        FROM siwa.accounts AS a
        WHERE a.erased_at >= $1 AND n.sub = a.sub AND n.team_id = a.team_id AND n.jws IS NOT NULL
        """
    )

    /// Erases the devices of sign-ins that another transaction had locked while the account was being erased.
    private static let eraseLateDevices = Statement(
        """
        UPDATE siwa.sign_ins SET device = NULL
        WHERE sign_in_id = ANY (ARRAY(
            SELECT s.sign_in_id
            FROM siwa.accounts AS a
            CROSS JOIN LATERAL (
                SELECT s.sign_in_id FROM siwa.sign_ins AS s
                WHERE s.account_id = a.account_id AND s.device IS NOT NULL
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS s
            WHERE a.erased_at >= $1
        ))
        """
    )
}
