import AccountStore
import AppleTokens
import Glibc
import Postgres

/// A submission that is durable, with its answer.
struct Settled: Sendable {
    /// What was stored.
    enum Effect: Sendable {
        case recorded(ReceivedNotification, RecordedNotification)
        case letterKept(ReceivedDeadLetter, isNew: Bool)
    }

    let submission: Submission
    let answer: Answer
    let effect: Effect
}

/// Stores one batch: the notifications in one statement, the dead letters in another.
///
/// Only the data's own fault makes a dead letter `store-rejected`; everything else is PostgreSQL's or ours, and is thrown.
struct BatchStore {
    /// Which way the batch came.
    let source: NotificationSource

    /// How often a batch is tried again that lost against another writer, or was chosen to resolve a deadlock.
    static let maximumConflicts = 20

    /// How long at most to wait after so many conflicts in a row. The first few tries lose nothing by coming at once;
    /// writers that go on getting in one another's way need to come apart.
    static func longestPause(afterConflicts conflicts: Int) -> Duration {
        conflicts > 3 ? .milliseconds(1 << min(conflicts - 3, 5)) : .zero
    }

    /// Stores everything in the batch; nothing is answered yet.
    ///
    /// - Throws: when PostgreSQL, not the data, is the matter. Parts of the batch may be durable then; all of it may be
    ///   stored again.
    func store(_ batch: [Submission], in session: borrowing Session) throws(PostgresError) -> [Settled] {
        var settled: [Settled] = []
        settled.reserveCapacity(batch.count)
        var notifications: [(Submission, ReceivedNotification)] = []
        notifications.reserveCapacity(batch.count)
        var letters: [(Submission, ReceivedDeadLetter, Answer)] = []
        for submission in batch {
            switch submission.work {
            case .notification(let received): notifications.append((submission, received))
            case .deadLetter(let letter, let answer): letters.append((submission, letter, answer))
            }
        }
        try record(notifications[...], &settled, &letters, in: session)
        try keep(letters, &settled, in: session)
        return settled
    }

    /// Records notifications. When their data are refused, each half is recorded by itself, until the poisonous one stands
    /// alone and becomes a dead letter.
    private func record(
        _ batch: ArraySlice<(Submission, ReceivedNotification)>,
        _ settled: inout [Settled],
        _ letters: inout [(Submission, ReceivedDeadLetter, Answer)],
        isSecondAttempt: Bool = false,
        in session: borrowing Session
    ) throws(PostgresError) {
        guard let first = batch.first else { return }
        do throws(PostgresError) {
            let recorded = try record(batch.map(\.1), in: session)
            for ((submission, received), recorded) in zip(batch, recorded) {
                settled.append(
                    Settled(submission: submission, answer: .acknowledged, effect: .recorded(received, recorded))
                )
            }
        } catch let error where error.blamesData && batch.count > 1 {
            let middle = batch.startIndex + batch.count / 2
            try record(batch[..<middle], &settled, &letters, in: session)
            try record(batch[middle...], &settled, &letters, in: session)
        } catch let error where error.blamesData {
            guard isSecondAttempt else {
                // A key that another writer, or an erasure, changed at the same moment looks like the data's fault once.
                return try record(batch, &settled, &letters, isSecondAttempt: true, in: session)
            }
            letters.append((first.0, ReceivedDeadLetter(rejected: first.1, by: error), .acknowledged))
        }
    }

    private func record(
        _ batch: [ReceivedNotification],
        in session: borrowing Session
    ) throws(PostgresError) -> [RecordedNotification] {
        var conflicts = 0
        while true {
            do throws(PostgresError) {
                return try Notifications.record(batch, source: source, in: session)
            } catch let error where error.isConflict && conflicts < Self.maximumConflicts {
                conflicts += 1
                pause(afterConflicts: conflicts)
            }
        }
    }

    /// Blocks the connection's own thread, as a statement would.
    private func pause(afterConflicts conflicts: Int) {
        let longest = Self.longestPause(afterConflicts: conflicts)
        if longest > .zero { usleep(UInt32.random(in: 0...UInt32(longest / .microseconds(1)))) }
    }

    private func keep(
        _ letters: [(Submission, ReceivedDeadLetter, Answer)],
        _ settled: inout [Settled],
        in session: borrowing Session
    ) throws(PostgresError) {
        guard !letters.isEmpty else { return }
        let isNew = try DeadLetters.record(letters.map(\.1), in: session)
        for ((submission, letter, answer), isNew) in zip(letters, isNew) {
            settled.append(
                Settled(submission: submission, answer: answer, effect: .letterKept(letter, isNew: isNew))
            )
        }
    }
}

extension PostgresError {
    /// Whether a month has no partition: SQLSTATE 23514 as for a violated CHECK, but a table is named and no constraint. A
    /// trigger that raises the same code names neither.
    var isMissingPartition: Bool {
        sqlState == .checkViolation && constraintName == nil && tableName == "notifications"
    }

    /// Whether a month can't have its partition: a table of that name is there, but isn't one.
    var isMissingMonth: Bool { sqlState == .objectNotInPrerequisiteState }

    /// Whether a notification's own data are refused.
    var blamesData: Bool { isDataError && !isMissingPartition }

    /// Whether another transaction came in between, so that the same statement may succeed at once.
    var isConflict: Bool {
        sqlState == .serializationFailure || sqlState == .deadlockDetected
    }
}
