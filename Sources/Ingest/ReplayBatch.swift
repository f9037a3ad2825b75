import AccountStore
import AppleTokens
import Postgres

/// The next letters of a run, within one transaction.
struct ReplayBatch {
    /// What became of them, by their ids.
    private(set) var fates: [LetterFate] = []
    /// The months that this batch made partitions for.
    private(set) var ensured: [PartitionHorizon.Stretch] = []

    private var replayed: [ReplayedDeadLetter] = []
    private var failed: [FailedDeadLetter] = []

    private typealias Item = (letter: ClaimedDeadLetter, received: ReceivedNotification)

    /// Takes letters, records what can be recorded, and notes in each letter what became of it.
    ///
    /// - Parameters:
    ///   - ids: the run has looked at those up to the lower one, and ends with the upper one.
    ///   - limit: at most so many letters.
    init(
        _ run: ReplayRun,
        ids: ClosedRange<Int64>,
        limit: Int,
        judge: ReplayJudge,
        _ partitions: PartitionHorizon,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        let letters = try DeadLetters.claim(
            run.filter,
            after: ids.lowerBound,
            through: ids.upperBound,
            limit: limit,
            in: transaction
        )
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
        for stretch in partitions.missing(for: items.lazy.map(\.received.notification.issuedAt)) {
            do throws(PostgresError) {
                try Self.ensure(stretch, in: transaction)
                ensured.append(stretch)
            } catch let error where error.isMissingMonth {
                try failMonths(within: stretch, of: &items, in: transaction)
            }
        }
        try record(items[...], in: transaction)
        try DeadLetters.resolve(replayed, by: run.operatorName, note: run.note, in: transaction)
        try DeadLetters.fail(failed, by: run.operatorName, in: transaction)
        fates.sort { $0.id < $1.id }
    }

    /// Records notifications. When their data are refused, each half is recorded by itself, until the poisonous one stands
    /// alone and stays dead.
    private mutating func record(
        _ items: ArraySlice<Item>,
        isSecondAttempt: Bool = false,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        guard let first = items.first else { return }
        do throws(PostgresError) {
            let recorded = try Self.record(items.map(\.received), in: transaction)
            for (item, recorded) in zip(items, recorded) {
                let notification = item.received.notification
                replayed.append(
                    ReplayedDeadLetter(id: item.letter.id, outcome: recorded.outcome, notification: notification)
                )
                fates.append(
                    LetterFate(
                        id: item.letter.id,
                        formerReason: item.letter.reason,
                        end: .replayed(recorded.outcome),
                        sessionsEnded: recorded.sessionsEnded
                    )
                )
            }
        } catch let error where error.blamesData && items.count > 1 {
            let middle = items.startIndex + items.count / 2
            try record(items[..<middle], in: transaction)
            try record(items[middle...], in: transaction)
        } catch let error where error.blamesData {
            // As on the way in: what another writer changed at the same moment looks like the data's fault once.
            guard isSecondAttempt else { return try record(items, isSecondAttempt: true, in: transaction) }
            fail(first.letter, ReceivedDeadLetter(rejected: first.received, by: error).letter)
        }
    }

    private static func record(
        _ batch: [ReceivedNotification],
        in transaction: borrowing Session
    ) throws(PostgresError) -> [RecordedNotification] {
        var conflicts = 0
        while true {
            do throws(PostgresError) {
                return try transaction.savepoint { session throws(PostgresError) in
                    let recorded = try Notifications.record(batch, source: .replay, in: session)
                    try Notifications.checkDeferredConstraints(in: session)
                    return recorded
                }
            } catch let error where error.isConflict && conflicts < BatchStore.maximumConflicts {
                conflicts += 1
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

    /// A month somewhere in the stretch can't have its partition: finds the letters that need it, and leaves them dead.
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
        fates.append(
            LetterFate(
                id: letter.id,
                formerReason: letter.reason,
                end: .dead(found.reason, detail: found.detail),
                sessionsEnded: 0
            )
        )
    }
}
