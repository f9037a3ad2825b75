package import AccountStore
package import AppleTokens
package import JOSE
package import Postgres

/// Replays dead letters the way that live traffic goes, on a connection of its own.
///
/// Letters are taken in the order of their ids, a batch in each transaction, which holds them against every other
/// operator, records their notifications and marks the letters: interrupted at any instant, each letter is either
/// replayed with all its effects or open, and another run finishes the rest. A run takes each letter once.
package struct DeadLetterReplay: Sendable {
    /// Batches that a rehearsal takes into one transaction: live traffic about the same people waits for it as long as for
    /// a few batches. Each transaction begins with the earlier letters about its people, so that every letter finds the
    /// effects that it would find in earnest.
    private static let rehearsedTogether = 8

    private let policy: NotificationPolicy
    private let trust: SigningKeys.Trust
    private let retention: Duration
    private let fetchKeys: @Sendable () async throws -> [JSONWebKey]
    private let now: @Sendable () -> WallTime

    /// A replay against what is accepted at present.
    ///
    /// - Parameters:
    ///   - trust: which of the kept keys count.
    ///   - retention: letters of notifications that are older stay open, so that no dropped partition is created again.
    ///   - fetchKeys: Apple's key set; asked for only when letters match that were never verified.
    package init(
        policy: NotificationPolicy,
        trust: SigningKeys.Trust,
        retention: Duration,
        fetchKeys: @escaping @Sendable () async throws -> [JSONWebKey],
        now: @escaping @Sendable () -> WallTime = { WallTime.now() }
    ) {
        self.policy = policy
        self.trust = trust
        self.retention = retention
        self.fetchKeys = fetchKeys
        self.now = now
    }

    /// Replays the letters that match now, over a connection of its own. Writes the operator's action down before the first.
    ///
    /// - Parameter onProgress: called with what became of the letters of each transaction, once that is committed, and
    ///   with the report so far; and once before the first.
    /// - Returns: nil if no letter matched.
    /// - Throws: `PostgresError`; `CancellationError` between two batches.
    package func run(
        _ run: ReplayRun,
        connecting settings: ConnectionSettings,
        onProgress: ([LetterFate], ReplayReport) -> Void = { _, _ in }
    ) async throws -> ReplayReport? {
        let connection = try await PostgresConnection.connect(settings)
        do {
            let report = try await self.run(run, on: connection, onProgress: onProgress)
            await connection.close()
            return report
        } catch {
            await connection.close()
            throw error
        }
    }

    /// As ``run(_:connecting:onProgress:)``, on a connection whose settings this changes.
    func run(
        _ run: ReplayRun,
        on connection: PostgresConnection,
        onProgress: ([LetterFate], ReplayReport) -> Void = { _, _ in }
    ) async throws -> ReplayReport? {
        let selected = try await connection.withSession { session throws(PostgresError) in
            try DeadLetters.select(run.filter, status: .open, in: session)
        }
        guard let selected else { return nil }
        let keys = selected.counts[.keysUnavailable] == nil ? .none : try await keys(on: connection)
        var report = ReplayReport(matched: selected.total, keyProblem: keys.problem)
        onProgress([], report)
        try await connection.withSession { session throws(PostgresError) in
            if !run.isRehearsal { try OperatorActions.record(run.action(on: selected.total), in: session) }
            try session.execute(script: Notifications.writerSettings)
        }

        let start = ContinuousClock.now
        var partitions = PartitionHorizon()
        var last = selected.firstID - 1
        var done = 0
        while last < selected.lastID {
            let part = try await part(run, ids: last...selected.lastID, keys, partitions, on: connection)
            guard let end = part.lastID else { break }
            if !run.isRehearsal { partitions.ensured(part.ensured) }
            last = end
            done += part.fates.count
            report.add(part.fates)
            onProgress(part.fates, report)
            try Task.checkCancellation()
            if let resumption = run.resumption(after: done, since: start), !run.isRehearsal {
                try await Task.sleep(until: resumption, clock: .continuous)
            }
        }
        return report
    }

    /// What one transaction did.
    private struct Part: Sendable {
        var fates: [LetterFate] = []
        var ensured: [PartitionHorizon.Stretch] = []
        /// nil: there was nothing left.
        var lastID: Int64?
    }

    private func part(
        _ run: ReplayRun,
        ids: ClosedRange<Int64>,
        _ keys: ReplayKeys,
        _ partitions: PartitionHorizon,
        on connection: PostgresConnection
    ) async throws(PostgresError) -> Part {
        let (policy, retention, now) = (policy, retention, now())
        var partitions = partitions
        var conflicts = 0
        while true {
            let known = partitions
            do throws(PostgresError) {
                return try await connection.transaction { transaction throws(PostgresError) in
                    let judge = ReplayJudge(
                        policy: policy,
                        keys: keys,
                        acceptsExpired: run.acceptsExpired,
                        retention: retention,
                        now: now
                    )
                    guard run.isRehearsal else {
                        return try Self.perform(run, ids, 1, run.pacedBatch, judge, known, in: transaction)
                    }
                    return try transaction.dryRun { session throws(PostgresError) in
                        try Self.precede(run, ids, judge, known, in: session)
                        return try Self.perform(run, ids, Self.rehearsedTogether, run.batch, judge, known, in: session)
                    }
                }
            } catch let error where error.isConflict && conflicts < BatchStore.maximumConflicts {
                conflicts += 1
            } catch let error where error.isMissingPartition && !partitions.isEmpty {
                // Somebody dropped partitions meanwhile.
                partitions.forget()
            }
        }
    }

    /// Replays what the run had replayed before about the people whose letters are next, and then had taken back.
    private static func precede(
        _ run: ReplayRun,
        _ ids: ClosedRange<Int64>,
        _ judge: ReplayJudge,
        _ partitions: PartitionHorizon,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        let earlier = try DeadLetters.precedents(
            run.filter,
            after: ids.lowerBound,
            through: ids.upperBound,
            limit: rehearsedTogether * run.batch,
            in: transaction
        )
        var partitions = partitions
        for start in stride(from: 0, to: earlier.count, by: run.batch) {
            let some = Array(earlier[start..<min(start + run.batch, earlier.count)])
            var again = run
            again.filter = DeadLetterFilter(ids: some)
            let batch = try ReplayBatch(
                again,
                ids: 0...ids.lowerBound,
                limit: some.count,
                judge: judge,
                partitions,
                in: transaction
            )
            partitions.ensured(batch.ensured)
        }
    }

    /// So many batches, one after another.
    private static func perform(
        _ run: ReplayRun,
        _ ids: ClosedRange<Int64>,
        _ count: Int,
        _ limit: Int,
        _ judge: ReplayJudge,
        _ partitions: PartitionHorizon,
        in transaction: borrowing Session
    ) throws(PostgresError) -> Part {
        var part = Part()
        for _ in 0..<count {
            let after = part.lastID ?? ids.lowerBound
            guard after < ids.upperBound else { break }
            let batch = try ReplayBatch(
                run,
                ids: after...ids.upperBound,
                limit: limit,
                judge: judge,
                partitions,
                in: transaction
            )
            guard let last = batch.fates.last?.id else { break }
            part.fates += batch.fates
            part.ensured += batch.ensured
            part.lastID = last
        }
        return part
    }

    private func keys(on connection: PostgresConnection) async throws(PostgresError) -> ReplayKeys {
        let trust = trust
        let kept = try await connection.withSession { session throws(PostgresError) in
            try SigningKeys.all(trust, in: session)
        }
        do {
            return ReplayKeys(today: try await fetchKeys(), kept: kept, problem: nil)
        } catch {
            return ReplayKeys(today: [], kept: kept, problem: "\(error)")
        }
    }
}

extension ReplayRun {
    fileprivate func action(on count: Int) -> OperatorAction {
        OperatorAction(
            operatorName: operatorName,
            action: "dead-letters replay",
            target: acceptsExpired ? filter.text + " --accept-expired" : filter.text,
            note: note,
            affected: count
        )
    }
}
