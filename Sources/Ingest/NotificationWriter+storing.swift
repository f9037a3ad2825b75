import AccountStore
import Postgres
import Synchronization
import Telemetry

/// The way of what comes in into the database.
extension NotificationWriter {
    /// A connection that breaks sooner than this was broken before; then another try costs nobody much time.
    static let promptly = Duration.seconds(1)

    /// Stores a batch, and those that come in meanwhile. When this returns, all that was taken is answered.
    func store(_ batch: [Submission]) async {
        guard let connection = line.withLock({ $0.connection }) else { return await spool(batch) }
        var rest = [batch]
        if isPlain(batch) {
            let turn = await connection.onThread { await storeInTurn(batch, on: connection) }
            rest = turn.unsettled + turn.others
            if let error = turn.error, !turn.isWorthAnother(error) {
                return await giveUp(connection, error, rest)
            }
        }
        for batch in rest.map(answerDurable) where !batch.isEmpty {
            if let connection = line.withLock({ $0.connection }) {
                await store(batch, on: connection)
            } else {
                await spool(batch)
            }
        }
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

    // MARK: - A batch by itself

    private func store(_ batch: [Submission], on connection: PostgresConnection) async {
        let start = ContinuousClock.now
        guard let error = await attempt(batch, on: connection, since: start) else { return }
        if error.isConnectionError, .now - start < Self.promptly, !Task.isCancelled {
            // A server that was restarted, or that ended an idle connection, is back at once more often than not; the
            // batch is idempotent, even if its commit went through.
            intake.log.warning("the connection to PostgreSQL broke; connecting again", ["error": "\(error)"])
            await storeAnew(batch, replacing: connection)
        } else if error.code == .server, error.maySpareOthers {
            await sift(batch, after: error, on: connection)
        } else {
            await giveUp(connection, error, [batch])
        }
    }

    /// Stores those of a batch that nothing is the matter with. The others go to the spool, or are answered 503 where there
    /// is none, and the connection stays, unless nothing could be stored of several or for the second time.
    private func sift(
        _ batch: [Submission],
        after error: PostgresError,
        on connection: PostgresConnection
    ) async {
        let sieve = await Sieve(batch, after: error) { part in
            await attempt(part, on: connection, since: .now)
        }
        func those(_ places: Set<Int>) -> [Submission] { places.sorted().map { batch[$0] } }
        if let failure = sieve.failure {
            return await giveUp(connection, failure, [those(sieve.refused.union(sieve.untried))])
        }
        guard let refusal = sieve.refusal else { return }
        let isBarren = line.withLock { line in
            defer { line.wasBarren = sieve.stored == 0 }
            return sieve.stored == 0 && (batch.count > 1 || line.wasBarren)
        }
        let refused = those(sieve.refused)
        if isBarren { return await giveUp(connection, refusal, [refused]) }
        if line.withLock({ $0.refusalComplaint.isDue("\(refusal)") }) {
            let consequence = intake.spool == nil ? "is answered 503" : "waits in the spool"
            intake.log.error(
                "PostgreSQL refuses a notification, or somebody's lock holds it up; it \(consequence)",
                ["count": "\(refused.count)", "error": "\(refusal)"]
            )
        }
        await spool(refused)
        alarm.ring()
    }

    /// Stores a batch in one transaction and answers it.
    ///
    /// - Returns: why that is not possible; nil: it is done.
    private func attempt(
        _ batch: [Submission],
        on connection: PostgresConnection,
        since start: ContinuousClock.Instant
    ) async -> PostgresError? {
        do throws(PostgresError) {
            try await store(batch, on: connection, since: start)
            return nil
        } catch {
            return error
        }
    }

    private func storeAnew(_ batch: [Submission], replacing broken: PostgresConnection) async {
        var current = broken
        do {
            let fresh = try await connect(within: Self.promptly)
            await broken.close()
            line.withLock { line in
                if line.connection === broken { line.connection = fresh }
            }
            current = fresh
            try await store(batch, on: fresh, since: .now)
        } catch {
            await giveUp(current, error, [batch])
        }
    }

    /// Spools what could not be stored, and then gives the connection up: the next one has to prove itself on that.
    private func giveUp(_ connection: PostgresConnection, _ error: any Error, _ batches: [[Submission]]) async {
        for batch in batches { await spool(batch) }
        await lost(connection, error)
    }

    private func store(
        _ batch: [Submission],
        on connection: PostgresConnection,
        since start: ContinuousClock.Instant
    ) async throws(PostgresError) {
        let partitions = line.withLock { $0.partitions }
        let settled = try await Self.commit(batch, from: .endpoint, on: connection, partitions)
        line.withLock { line in
            line.noteStored(settled)
            line.partitions.ensured(partitions.missing(for: batch))
        }
        intake.remember(settled)
        answer(settled.map { ($0.submission, $0.answer) })
        reportRejected(settled)
        intake.measure(settled, from: .endpoint, since: start)
    }
}

extension NotificationWriter.Line {
    /// Something was stored on the connection.
    mutating func noteStored(_ settled: [Settled]) {
        hasStored = true
        wasBarren = false
        isInUse = true
    }
}
