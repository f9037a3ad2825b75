package import AccountStore
package import AppleTokens
package import Basics
package import JOSE
package import Postgres

/// A replay of dead letters that an operator wants.
package struct ReplayRun: Sendable {
    package var filter: DeadLetterFilter
    package var operatorName: String
    /// The operator's reason, for the audit.
    package var note: String
    /// Letters a second; nil: no limit.
    package var rate: Double?
    /// Also replays letters that were received after their `exp`; newer facts stay in force anyway.
    package var acceptsExpired = false
    /// Finds out what would happen to the letters, and changes nothing.
    package var isRehearsal = false
    package var batch = 256

    package init(_ filter: DeadLetterFilter, by operatorName: String, note: String, rate: Double? = nil) {
        self.filter = filter
        self.operatorName = operatorName
        self.note = note
        self.rate = rate
    }

    /// Letters in one transaction, small enough for an even rate.
    var pacedBatch: Int {
        guard let rate else { return batch }
        return Int(min(Double(batch), max(1, rate / 4)))
    }
}

/// The result for one dead letter that was replayed, or would be.
package struct ReplayResult: Sendable, Equatable {
    package let id: Int64
    /// Why it was kept until then.
    package let formerReason: DeadLetterReason
    package let end: End
    /// The live sessions that its notification ended.
    package let sessionsEnded: Int

    package enum End: Sendable, Equatable {
        case replayed(NotificationOutcome)
        /// It stays open: for this reason, in this sentence.
        case dead(DeadLetterReason, detail: String)
    }

    fileprivate var isReplayed: Bool {
        switch end {
        case .replayed: true
        case .dead: false
        }
    }

    init(_ letter: ClaimedDeadLetter, _ end: End, sessionsEnded: Int) {
        id = letter.id
        formerReason = letter.reason
        self.end = end
        self.sessionsEnded = sessionsEnded
    }
}

/// The results of a run so far, or of a rehearsal.
package struct ReplayReport: Sendable, Equatable {
    /// The former reason of a letter, and its result.
    package struct Change: Sendable, Hashable {
        package let from: DeadLetterReason
        /// The effect of its notification; nil: it stays open.
        package let outcome: NotificationOutcome?
        /// Why it stays open; nil: it does not.
        package let reason: DeadLetterReason?
    }

    package let matched: Int
    /// Why Apple's current keys could not be used; nil: they could, or were not needed.
    package let keyProblem: String?
    package private(set) var changes: [Change: Int] = [:]
    /// For each change that leaves letters open, the sentence of the first.
    package private(set) var details: [Change: String] = [:]
    package private(set) var sessionsEnded = 0
    package private(set) var replayed = 0
    /// Letters that stay open.
    package private(set) var dead = 0

    /// Letters that matched and were resolved by another operator before the run reached them.
    package var passedOver: Int { max(0, matched - replayed - dead) }

    mutating func add(_ results: [ReplayResult]) {
        for result in results {
            let change: Change
            switch result.end {
            case .replayed(let outcome):
                change = Change(from: result.formerReason, outcome: outcome, reason: nil)
                replayed += 1
            case .dead(let reason, let detail):
                change = Change(from: result.formerReason, outcome: nil, reason: reason)
                details[change] = details[change] ?? detail
                dead += 1
            }
            changes[change, default: 0] += 1
            sessionsEnded += result.sessionsEnded
        }
    }
}

/// Replays dead letters as live traffic is stored, on a connection of its own.
///
/// Letters are processed in the order of their ids, one batch in each transaction, which locks them against other
/// operators, records their notifications, marks the letters and records the operator's action with the number of letters
/// that were replayed. If a run is interrupted, each letter is either replayed with all its effects or open, the audit
/// counts exactly the replayed ones, and another run processes the rest. A run processes each letter once.
package struct DeadLetterReplay: Sendable {
    private let policy: NotificationPolicy
    private let trust: SigningKeys.Trust
    private let retention: Duration
    private let fetchKeys: @Sendable () async throws -> [JSONWebKey]
    private let now: @Sendable () -> WallTime

    /// - Parameters:
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

    /// Replays the letters that match now, over a connection of its own. Each transaction records the operator's action with the
    /// number of letters that it replayed.
    ///
    /// - Parameter onProgress: called before the first letter, and with the results of each transaction after its commit. An error
    ///   ends the run.
    /// - Returns: nil if no letter matched.
    /// - Throws: `PostgresError`; `CancellationError` between two batches.
    package func run(
        _ run: ReplayRun,
        connecting settings: ConnectionSettings,
        onProgress: ([ReplayResult], ReplayReport) throws -> Void = { _, _ in }
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
        onProgress: ([ReplayResult], ReplayReport) throws -> Void = { _, _ in }
    ) async throws -> ReplayReport? {
        let selected = try await connection.withSession { session throws(PostgresError) in
            try DeadLetters.select(run.filter, status: .open, in: session)
        }
        guard let selected else { return nil }
        let keys = selected.counts[.keysUnavailable] == nil ? .none : try await keys(on: connection)
        var report = ReplayReport(matched: selected.total, keyProblem: keys.problem)
        try onProgress([], report)
        try await connection.withSession { session throws(PostgresError) in
            try session.execute(script: Notifications.writerSettings)
        }

        let start = ContinuousClock.now
        var months = PartitionedMonths()
        var last = selected.firstID - 1
        var done = 0
        var refusals = Refusals()
        while last < selected.lastID {
            let part = try await part(run, ids: last...selected.lastID, keys, months, on: connection)
            guard let end = part.results.last?.id else { break }
            if !run.isRehearsal { months = part.months }
            last = end
            done += part.results.count
            report.add(part.results)
            try onProgress(part.results, report)
            try Task.checkCancellation()
            refusals.add(part.results, part.obstacle)
            if let obstacle = refusals.obstacle, refusals.areMany { throw obstacle }
            if let rate = run.rate, !run.isRehearsal {
                try await Task.sleep(until: start + .seconds(Double(done) / rate), clock: .continuous)
            }
        }
        if let obstacle = refusals.obstacle, report.replayed == 0 { throw obstacle }
        return report
    }

    /// The letters in a row of which PostgreSQL could store none.
    private struct Refusals {
        private var batches = 0
        private var letters = 0
        /// The error of the last of these batches.
        private(set) var obstacle: PostgresError?

        /// Some letters about one person or of one app may follow each other. More have a cause that no run can pass.
        var areMany: Bool { batches >= 8 && letters >= 256 }

        mutating func add(_ results: [ReplayResult], _ obstacle: PostgresError?) {
            if let obstacle {
                self.obstacle = obstacle
                batches += 1
                letters += results.count
            } else if results.contains(where: \.isReplayed) {
                (batches, letters) = (0, 0)
            }
        }
    }

    private func part(
        _ run: ReplayRun,
        ids: ClosedRange<Int64>,
        _ keys: ReplayKeys,
        _ months: PartitionedMonths,
        on connection: PostgresConnection
    ) async throws(PostgresError) -> (results: [ReplayResult], months: PartitionedMonths, obstacle: PostgresError?) {
        let (policy, now) = (policy, now())
        let horizon = now - retention
        var months = months
        var conflicts = 0
        while true {
            let known = months
            do throws(PostgresError) {
                return try await connection.transaction { transaction throws(PostgresError) in
                    let judge = ReplayJudge(
                        verifier: NotificationVerifier(policy: policy),
                        keys: keys,
                        acceptsExpired: run.acceptsExpired,
                        horizon: horizon,
                        now: now
                    )
                    var part = ReplayTransaction(run: run, judge: judge, months: known)
                    if run.isRehearsal {
                        try transaction.dryRun { session throws(PostgresError) in try part.rehearse(ids, in: session) }
                    } else {
                        try part.process(run.filter, ids, limit: run.pacedBatch, in: transaction)
                        if let action = part.action { try OperatorActions.record(action, in: transaction) }
                    }
                    return (part.results, part.months, part.obstacle)
                }
            } catch let error where error.isConflict && conflicts < Committer.maximumConflicts {
                conflicts += 1
            } catch let error where error.isMissingPartition && !months.isEmpty {
                // Another session dropped partitions.
                months = PartitionedMonths()
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

/// The letters of a run that one transaction processes.
private struct ReplayTransaction {
    /// Batches in one transaction of a rehearsal: live traffic about the same people waits for it. Each transaction begins
    /// with the earlier letters about its people, so that every letter finds the effects that it would find in a real run.
    private static let rehearsedTogether = 8

    private typealias Item = (letter: ClaimedDeadLetter, received: ReceivedNotification)

    let run: ReplayRun
    let judge: ReplayJudge
    /// The months that have partitions if the transaction is committed.
    var months: PartitionedMonths
    /// In the order of the ids.
    var results: [ReplayResult] = []
    var replayed: [ReplayedDeadLetter] = []
    var failed: [FailedDeadLetter] = []
    /// Why PostgreSQL can store none of several letters, the ones that were processed last; nil: it can, or there was one.
    var obstacle: PostgresError?

    /// The action of the operator; nil if no letter was changed.
    var action: OperatorAction? {
        guard !replayed.isEmpty || !failed.isEmpty else { return nil }
        var filter = run.filter
        // The entry of each batch names only its own letters: the audit would grow with the square of a list of numbers.
        if filter.ids.count > run.pacedBatch { filter.ids = results.map(\.id) }
        return OperatorAction(
            operatorName: run.operatorName,
            action: "dead-letters replay",
            target: run.acceptsExpired ? filter.text + " --accept-expired" : filter.text,
            note: run.note,
            affected: replayed.count
        )
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
            if obstacle != nil { break }
        }
        results = []
        for _ in 0..<Self.rehearsedTogether {
            let (last, count) = (results.last?.id ?? ids.lowerBound, results.count)
            guard last < ids.upperBound else { return }
            try process(run.filter, last...ids.upperBound, limit: run.batch, in: transaction)
            // The deadline of the transaction is not for several batches that wait for locks.
            guard results.count > count, obstacle == nil else { return }
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
        for letter in letters {
            switch judge.judge(letter) {
            case .verified(let received):
                items.append((letter, received))
            case .dead(let found):
                fail(letter, found)
            case .tooOld:
                let advice = "to apply it, replay it with a longer SIWAD_RETENTION"
                fail(letter, letter.staying("It is older than SIWAD_RETENTION: \(advice)."))
            case .refused(let rejection):
                fail(letter, letter.staying("Refused as \(rejection.rawValue): \(rejection.title)."))
            }
        }
        try ensureMonths(of: &items, in: transaction)
        let recordings = try Committer(source: .replay).record(items.map(\.received), in: transaction)
        let obstacles = recordings.compactMap(\.obstacle)
        obstacle = items.count > 1 && obstacles.count == items.count ? obstacles.first : nil
        for (item, recording) in zip(items, recordings) {
            switch recording {
            case .success(let recorded):
                let (letter, notification, outcome) = (item.letter, item.received.notification, recorded.outcome)
                replayed.append(ReplayedDeadLetter(id: letter.id, outcome: outcome, notification: notification))
                results.append(ReplayResult(letter, .replayed(outcome), sessionsEnded: recorded.sessionsEnded))
            case .failure(let error) where error.blamesData:
                fail(item.letter, ReceivedDeadLetter(rejected: item.received, by: error).letter)
            case .failure(let error):
                leave(item.letter, error)
            }
        }
        try DeadLetters.resolve(replayed, by: run.operatorName, note: run.note, in: transaction)
        try DeadLetters.fail(failed, by: run.operatorName, in: transaction)
        results.sort { $0.id < $1.id }
    }

    /// Letters whose month can't have its partition stay as they are: a table of that name exists, but is not a partition.
    private mutating func ensureMonths(of items: inout [Item], in transaction: borrowing Session) throws(PostgresError)
    {
        for time in months.missing(for: items.map(\.received)) {
            do throws(PostgresError) {
                try transaction.savepoint { session throws(PostgresError) in
                    _ = try Notifications.ensurePartitions(from: time, through: time, in: session)
                }
                months.insert([time])
            } catch let error where error.sqlState == .objectNotInPrerequisiteState {
                for item in items where item.received.notification.issuedAt.month == time.month {
                    leave(item.letter, error)
                }
                items.removeAll { $0.received.notification.issuedAt.month == time.month }
            }
        }
    }

    /// The letter is not the cause: it is not changed.
    private mutating func leave(_ letter: ClaimedDeadLetter, _ error: PostgresError) {
        let detail = "PostgreSQL can't store it at present (\(error.refusal))."
        results.append(ReplayResult(letter, .dead(letter.reason, detail: detail), sessionsEnded: 0))
    }

    private mutating func fail(_ letter: ClaimedDeadLetter, _ found: DeadLetter) {
        failed.append(FailedDeadLetter(id: letter.id, letter: found))
        results.append(ReplayResult(letter, .dead(found.reason, detail: found.detail), sessionsEnded: 0))
    }
}

extension Result<RecordedNotification, PostgresError> {
    /// Why a notification can't be stored at present.
    fileprivate var obstacle: PostgresError? {
        if case .failure(let error) = self, !error.blamesData { error } else { nil }
    }
}
