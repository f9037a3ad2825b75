package import AppleTokens
package import Basics
package import Postgres
import Schema

/// Writes verified notifications and their effects.
package enum Notifications {
    /// Settings that the connection needs before it records notifications; see `record_notifications.sql`.
    ///
    /// The server makes one plan, because the plan does not depend on the parameters and planning a batch would cost more
    /// than executing it. The other settings exclude sequential scans, which look cheap while a table is empty and become
    /// slow when it grows.
    package static let writerSettings = """
        SET plan_cache_mode = force_generic_plan;
        SET enable_nestloop = off;
        SET enable_seqscan = off;
        SET seq_page_cost = 1e9;
        """

    /// Lets the server plan the statement that records a batch, so that the first batch does not wait for planning.
    /// Records nothing.
    ///
    /// - Throws: any error that a batch would cause, such as a missing right. The transaction is then still open.
    package static func plan(in session: borrowing Session) throws(PostgresError) {
        // Rolled back: even without notifications the statement writes to the log, and a commit would wait for that.
        try session.execute(script: "BEGIN")
        _ = try session.execute(record, RecordableRows([]).binds(from: .endpoint))
        try session.execute(script: "ROLLBACK")
    }

    /// Records a batch with all its effects, and returns the effect of each notification in the order of the batch.
    ///
    /// Outside a transaction, everything is durable when this returns. If it throws, nothing was recorded, except after an
    /// error whose outcome is unknown. Recording the same batch again is safe, because it is idempotent.
    ///
    /// - Throws: SQLSTATE 40001 if another writer changed or inserted one of the rows: record the batch again. Class 22 or
    ///   23 if one of the notifications cannot be stored. 23514 also if a month has no partition: see
    ///   ``ensurePartitions(from:through:in:)``.
    package static func record(
        _ batch: [ReceivedNotification],
        source: NotificationSource,
        in session: borrowing Session
    ) throws(PostgresError) -> [RecordedNotification] {
        let rows = RecordableRows(batch)
        do throws(PostgresError) {
            return try rows.recorded(try session.execute(record, rows.binds(from: source)))
        } catch {
            throw error.asConflict
        }
    }

    /// Records one batch after another, each as ``record(_:source:in:)`` does. While the server commits a batch, this
    /// already takes and sends the next one.
    ///
    /// - Parameters:
    ///   - next: the next batch; nil if there is none now.
    ///   - durable: called with the effects of a batch once they are durable.
    /// - Throws: the error of a batch. Batches that `durable` did not report may be stored or not: record them again.
    package static func record(
        pipelined first: [ReceivedNotification],
        next: () -> [ReceivedNotification]?,
        source: NotificationSource,
        in session: borrowing Session,
        durable: ([RecordedNotification]) -> Void
    ) throws(PostgresError) {
        var sent: [RecordableRows] = []
        func bound(_ batch: [ReceivedNotification]) -> BoundStatement {
            let rows = RecordableRows(batch)
            sent.append(rows)
            return BoundStatement(record, rows.binds(from: source))
        }
        do throws(PostgresError) {
            try session.executePipelined(
                [record],
                first: bound(first),
                next: { next().map(bound) },
                committed: { (rows: borrowing Rows) throws(PostgresError) in
                    durable(try sent.removeFirst().recorded(rows))
                }
            )
        } catch {
            throw error.asConflict
        }
    }

    /// Checks deferred constraints and triggers now instead of at the end of the transaction. A caller that records
    /// several batches in one transaction thereby learns which batch the server refuses.
    package static func checkDeferredConstraints(in transaction: borrowing Session) throws(PostgresError) {
        try transaction.execute(script: "SET CONSTRAINTS ALL IMMEDIATE")
    }

    /// Creates the missing monthly partitions between two times, which are at most twenty years apart.
    ///
    /// - Returns: the number of partitions that it created.
    @discardableResult
    package static func ensurePartitions(
        from earliest: WallTime,
        through latest: WallTime,
        in session: borrowing Session
    ) throws(PostgresError) -> Int {
        let rows = try session.execute(
            ensurePartitions,
            Binds {
                $0.append(Timestamp(earliest))
                $0.append(Timestamp(latest))
            }
        )
        return Int(try rows.int32(0, 0))
    }

    /// `siwa.accounts.account_id` of each person, nil for one without an account.
    package static func accountIDs(
        of notifications: [VerifiedNotification],
        in session: borrowing Session
    ) throws(PostgresError) -> [Int64?] {
        let rows = try session.execute(
            accountIDs,
            Binds { binds in
                binds.appendTexts(notifications.count) { notifications[$0].event.subject.rawValue }
                binds.appendTexts(notifications.count) { notifications[$0].team.rawValue }
            }
        )
        return try rows.decode { (id: Int64?) in id }
    }

    /// Checks that the server accepts writes.
    ///
    /// - Throws: SQLSTATE 25006 if the server is a standby or read only.
    package static func checkWritable(in session: borrowing Session) throws(PostgresError) {
        let isReadOnly = try session.execute(isReadOnly).bool(0, 0)
        guard isReadOnly else { return }
        throw PostgresError(
            .server,
            "it is a standby, or set to read only; name all servers in the database URL, with "
                + "target_session_attrs=read-write",
            sqlState: .readOnlyTransaction
        )
    }

    /// Checks that the role may store notifications, by storing none.
    ///
    /// - Throws: SQLSTATE 42501 with what is missing.
    package static func checkRights(in transaction: borrowing Session) throws(PostgresError) {
        try transaction.savepoint { session throws(PostgresError) in
            _ = try session.execute(record, RecordableRows([]).binds(from: .endpoint))
        }
    }

    private static let record = Statement(String(sql: PackageResources.record_notifications_sql))
    private static let ensurePartitions = Statement("SELECT siwa.ensure_notification_partitions($1, $2)")
    private static let accountIDs = Statement(
        once: """
            SELECT a.account_id
            FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n (sub, team_id, position)
            LEFT JOIN siwa.accounts AS a ON a.sub = n.sub COLLATE "C" AND a.team_id = n.team_id COLLATE "C"
            ORDER BY n.position
            """
    )
    private static let isReadOnly = Statement(
        once: "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"
    )
}

extension PostgresError {
    /// A serialization failure instead of the unique violation that occurs if another writer inserted the same person or
    /// consent.
    fileprivate var asConflict: PostgresError {
        guard sqlState == .uniqueViolation, schemaName == Schema.name, let constraintName,
            ["accounts_person_is_unique", "consents_pkey"].contains(constraintName)
        else { return self }
        return PostgresError(
            .server,
            "another writer has inserted the same row",
            sqlState: .serializationFailure
        )
    }
}

// MARK: - Values

/// A verified notification and when its request arrived.
///
/// A class, so that batches and responses copy one reference instead of a dozen strings.
package final class ReceivedNotification: Sendable, Equatable {
    package let notification: VerifiedNotification
    /// When the request was read, by this machine's clock.
    package let receivedAt: WallTime

    package init(_ notification: VerifiedNotification, receivedAt: WallTime) {
        self.notification = notification
        self.receivedAt = receivedAt
    }

    package static func == (lhs: ReceivedNotification, rhs: ReceivedNotification) -> Bool {
        lhs.notification == rhs.notification && lhs.receivedAt == rhs.receivedAt
    }
}

/// How a notification reached the database (`siwa.notifications.source`).
package enum NotificationSource: String, Sendable, CaseIterable {
    /// Directly from a request.
    case endpoint
    /// From the spool, after PostgreSQL was unavailable.
    case spool
    /// From a dead letter that an operator replayed.
    case replay
}

/// The effect of a notification (`siwa.notifications.outcome`), or that it was already stored.
package enum NotificationOutcome: String, Sendable, CaseIterable {
    /// It changed a state or an address, or ended sessions.
    case applied
    /// A newer fact was known, or the account is deleted. Its own fact is kept and decides nothing.
    case superseded
    /// The state was already the one that it reports.
    case unchanged
    /// A notification with the same `jti` was already stored. Nothing was added.
    case duplicate
}

/// The effect of one notification of a batch.
package struct RecordedNotification: Sendable, Equatable {
    package let outcome: NotificationOutcome
    /// The number of live sessions that it ended.
    package let sessionsEnded: Int
}
