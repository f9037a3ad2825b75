package import AccountStore
package import AppleTokens
package import JOSE
package import Postgres

/// Replays dead letters as live traffic is stored, on a connection of its own.
///
/// Letters are processed in the order of their ids, one batch in each transaction, which locks them against other
/// operators, records their notifications and marks the letters. If a run is interrupted, each letter is either replayed
/// with all its effects or open, and another run processes the rest. A run processes each letter once.
package struct DeadLetterReplay: Sendable {
    private let policy: NotificationPolicy
    private let trust: SigningKeys.Trust
    private let retention: Duration
    private let fetchKeys: @Sendable () async throws -> [JSONWebKey]
    private let now: @Sendable () -> WallTime

    /// - Parameters:
    ///   - trust: the stored keys that are trusted.
    ///   - retention: letters of older notifications stay open, so that no dropped partition is created again.
    ///   - fetchKeys: fetches Apple's key set; called only if unverified letters match.
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

    /// Replays the letters that match now, over a connection of its own. Records the operator's action first.
    ///
    /// - Parameter onProgress: called before the first letter, and with the results of each transaction after its commit.
    /// - Returns: nil if no letter matched.
    /// - Throws: `PostgresError`; `CancellationError` between two batches.
    package func run(
        _ run: ReplayRun,
        connecting settings: ConnectionSettings,
        onProgress: ([ReplayResult], ReplayReport) -> Void = { _, _ in }
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
        onProgress: ([ReplayResult], ReplayReport) -> Void = { _, _ in }
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
            guard let end = part.results.last?.id else { break }
            if !run.isRehearsal { partitions = part.partitions }
            last = end
            done += part.results.count
            report.add(part.results)
            onProgress(part.results, report)
            try Task.checkCancellation()
            if let resumption = run.resumption(after: done, since: start), !run.isRehearsal {
                try await Task.sleep(until: resumption, clock: .continuous)
            }
        }
        return report
    }

    /// Processes the next letters in one transaction.
    private func part(
        _ run: ReplayRun,
        ids: ClosedRange<Int64>,
        _ keys: ReplayKeys,
        _ partitions: PartitionHorizon,
        on connection: PostgresConnection
    ) async throws(PostgresError) -> (results: [ReplayResult], partitions: PartitionHorizon) {
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
                    var part = ReplayTransaction(run: run, judge: judge, partitions: known)
                    if run.isRehearsal {
                        try transaction.dryRun { session throws(PostgresError) in try part.rehearse(ids, in: session) }
                    } else {
                        try part.process(run.filter, ids, limit: run.pacedBatch, in: transaction)
                    }
                    return (part.results, part.partitions)
                }
            } catch let error where error.isConflict && conflicts < Committer.maximumConflicts {
                conflicts += 1
            } catch let error where error.isMissingPartition && !partitions.isEmpty {
                // Another session dropped partitions.
                partitions.forget()
            }
        }
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

/// The letters of a run that one transaction processes.
private struct ReplayTransaction {
    /// Batches in one transaction of a rehearsal: live traffic about the same people waits for it. Each transaction begins
    /// with the earlier letters about its people, so that every letter finds the effects that it would find in a real run.
    private static let rehearsedTogether = 8

    private typealias Item = (letter: ClaimedDeadLetter, received: ReceivedNotification)

    let run: ReplayRun
    let judge: ReplayJudge
    /// The months that have partitions if the transaction is committed.
    private(set) var partitions: PartitionHorizon
    /// In the order of the ids.
    private(set) var results: [ReplayResult] = []
    private var replayed: [ReplayedDeadLetter] = []
    private var failed: [FailedDeadLetter] = []

    init(run: ReplayRun, judge: ReplayJudge, partitions: PartitionHorizon) {
        self.run = run
        self.judge = judge
        self.partitions = partitions
    }

    /// Processes several batches after the earlier letters about their people, whose own rehearsal was rolled back.
    mutating func rehearse(_ ids: ClosedRange<Int64>, in transaction: borrowing Session) throws(PostgresError) {
        let earlier = try DeadLetters.precedents(
            run.filter,
            after: ids.lowerBound,
            through: ids.upperBound,
            limit: Self.rehearsedTogether * run.batch,
            in: transaction
        )
        for start in stride(from: 0, to: earlier.count, by: run.batch) {
            let some = Array(earlier[start..<min(start + run.batch, earlier.count)])
            try process(DeadLetterFilter(ids: some), 0...ids.lowerBound, limit: some.count, in: transaction)
        }
        results = []
        for _ in 0..<Self.rehearsedTogether {
            let (last, count) = (results.last?.id ?? ids.lowerBound, results.count)
            guard last < ids.upperBound else { return }
            try process(run.filter, last...ids.upperBound, limit: run.batch, in: transaction)
            guard results.count > count else { return }
        }
    }

    /// Claims at most `limit` letters, records their notifications, and stores the result in each letter.
    ///
    /// - Parameter ids: the last letter that was processed, and the last one of the run.
    mutating func process(
        _ filter: DeadLetterFilter,
        _ ids: ClosedRange<Int64>,
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        let letters = try DeadLetters.claim(
            filter,
            after: ids.lowerBound,
            through: ids.upperBound,
            limit: limit,
            in: transaction
        )
        (replayed, failed) = ([], [])
        var items: [Item] = []
        items.reserveCapacity(letters.count)
        for letter in letters {
            switch judge.judge(letter) {
            case .verified(let received) where judge.isTooOld(received): fail(letter, ReplayJudge.tooOld(letter))
            case .verified(let received): items.append((letter, received))
            case .dead(let found): fail(letter, found)
            case .refused(let rejection): fail(letter, ReplayJudge.refused(letter, rejection))
            }
        }
        var ensured: [PartitionHorizon.Stretch] = []
        for stretch in partitions.missing(for: items.lazy.map(\.received.notification.issuedAt)) {
            do throws(PostgresError) {
                try Self.ensure(stretch, in: transaction)
                ensured.append(stretch)
            } catch let error where error.isMissingMonth {
                try failMonths(within: stretch, of: &items, in: transaction)
            }
        }
        partitions.ensured(ensured)
        try record(items, in: transaction)
        try DeadLetters.resolve(replayed, by: run.operatorName, note: run.note, in: transaction)
        try DeadLetters.fail(failed, by: run.operatorName, in: transaction)
        results.sort { $0.id < $1.id }
    }

    private mutating func record(_ items: [Item], in transaction: borrowing Session) throws(PostgresError) {
        let recordings = try Committer(source: .replay).record(items.map(\.received), in: transaction)
        for (item, recording) in zip(items, recordings) {
            switch recording {
            case .success(let recorded):
                let (letter, notification) = (item.letter, item.received.notification)
                replayed.append(
                    ReplayedDeadLetter(id: letter.id, outcome: recorded.outcome, notification: notification)
                )
                results.append(
                    ReplayResult(
                        id: letter.id,
                        formerReason: letter.reason,
                        end: .replayed(recorded.outcome),
                        sessionsEnded: recorded.sessionsEnded
                    )
                )
            case .failure(let error):
                fail(item.letter, ReceivedDeadLetter(rejected: item.received, by: error).letter)
            }
        }
    }

    private static func ensure(
        _ stretch: PartitionHorizon.Stretch,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        try transaction.savepoint { session throws(PostgresError) in
            _ = try Notifications.ensurePartitions(from: stretch.from, through: stretch.through, in: session)
        }
    }

    /// A month of the stretch can't have its partition: the letters that need it stay dead.
    private mutating func failMonths(
        within stretch: PartitionHorizon.Stretch,
        of items: inout [Item],
        in transaction: borrowing Session
    ) throws(PostgresError) {
        var rest: [Item] = []
        for item in items {
            let issued = item.received.notification.issuedAt
            guard stretch.from <= issued, issued <= stretch.through else {
                rest.append(item)
                continue
            }
            do throws(PostgresError) {
                try Self.ensure(PartitionHorizon.Stretch(from: issued, through: issued), in: transaction)
                rest.append(item)
            } catch let error where error.isMissingMonth {
                fail(item.letter, ReceivedDeadLetter(rejected: item.received, by: error).letter)
            }
        }
        items = rest
    }

    private mutating func fail(_ letter: ClaimedDeadLetter, _ found: DeadLetter) {
        failed.append(FailedDeadLetter(id: letter.id, letter: found))
        results.append(
            ReplayResult(
                id: letter.id,
                formerReason: letter.reason,
                end: .dead(found.reason, detail: found.detail),
                sessionsEnded: 0
            )
        )
    }
}
