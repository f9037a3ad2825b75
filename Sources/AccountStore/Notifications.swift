package import AppleTokens
package import Postgres
import Schema

/// The writing of verified notifications and their effects.
package enum Notifications {
    /// Checks now what was to be checked at the end of the transaction, deferred constraints and triggers of an operator's,
    /// so that whoever records several batches in one transaction knows which of them is refused.
    ///
    /// - Throws: what the COMMIT would.
    package static func checkDeferredConstraints(in transaction: borrowing Session) throws(PostgresError) {
        try transaction.execute(script: "SET CONSTRAINTS ALL IMMEDIATE")
    }

    /// What the connection that records notifications must be set to once; see ``record(_:source:in:)``.
    ///
    /// The statement's plan doesn't depend on its parameters, so it is made once. Planning it anew for every batch would
    /// cost more than executing it. What is switched off or made dear would read a table from end to end: tempting while
    /// it is empty, ruinous when it has grown.
    package static let writerSettings = """
        SET plan_cache_mode = force_generic_plan;
        SET enable_nestloop = off;
        SET enable_seqscan = off;
        SET seq_page_cost = 1e9;
        """

    /// Has the server plan what records a batch, so that the first batch need not wait for that. Records nothing.
    ///
    /// - Throws: what a batch would fail with, such as a missing right; the transaction that this opens is open then.
    package static func plan(in session: borrowing Session) throws(PostgresError) {
        let nothing = RecordableRows([]).binds(from: .endpoint)
        // Undone, since even for no notification the statement writes to the log, and the commit waits for that.
        try session.execute(script: "BEGIN")
        _ = try session.execute(record, nothing)
        try session.execute(script: "ROLLBACK")
    }

    /// Records a batch with all its effects, and says what each notification did, in the order of the batch.
    ///
    /// Everything is durable when this returns outside of a transaction, and nothing of it happened when it throws, but
    /// for an error whose outcome is unknown: record the same batch again then, it is idempotent.
    ///
    /// - Throws: SQLSTATE 40001 when another writer changed or inserted one of the rows meanwhile: call again. Class 22 or
    ///   23 when one of the notifications can't be stored. 23514 also when a month has no partition: see
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

    /// Records batch after batch, each as ``record(_:source:in:)`` does. A batch that follows is taken and sent while the
    /// one before it is being committed, so that the server waits for nothing in between.
    ///
    /// - Parameters:
    ///   - next: the batch that follows; nil: there is none at present.
    ///   - durable: takes what the notifications of a batch did, once all of that is durable.
    /// - Throws: what a batch failed with. Those that were not reported durable may be or not: record them again.
    package static func record(
        pipelined first: [ReceivedNotification],
        next: () -> [ReceivedNotification]?,
        source: NotificationSource,
        in session: borrowing Session,
        durable: ([RecordedNotification]) -> Void
    ) throws(PostgresError) {
        var sent: [RecordableRows] = []
        func execution(_ batch: [ReceivedNotification]) -> BoundStatement {
            let rows = RecordableRows(batch)
            sent.append(rows)
            return BoundStatement(record, rows.binds(from: source))
        }
        do throws(PostgresError) {
            try session.executePipelined(
                [record],
                first: execution(first),
                next: { next().map(execution) },
                committed: { (rows: borrowing Rows) throws(PostgresError) in
                    durable(try sent.removeFirst().recorded(rows))
                }
            )
        } catch {
            throw error.asConflict
        }
    }

    /// Creates the monthly partitions between two times that don't exist yet; a range of at most twenty years.
    ///
    /// - Returns: how many were created.
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

    /// Makes sure that the server takes writes: not a standby, nor set to read only.
    ///
    /// - Throws: SQLSTATE 25006 when it takes none.
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

    private static let isReadOnly = Statement(
        once: "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"
    )

    private static let ensurePartitions = Statement("SELECT siwa.ensure_notification_partitions($1, $2)")
}

extension PostgresError {
    /// That somebody else has inserted a person or consent meanwhile means what it means that they have changed one.
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
