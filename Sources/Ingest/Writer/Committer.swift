import AccountStore
import AppleTokens
import Basics
import Glibc
import JOSE
import Postgres
import Spool
import Synchronization

/// A submission that is durable, and what it became.
struct Settled: Sendable {
    enum Effect: Sendable {
        case recorded(ReceivedNotification, RecordedNotification)
        /// With the number of a new letter; nil if it was known already.
        case letterKept(ReceivedDeadLetter, id: Int64?)
    }

    let submission: Submission
    let effect: Effect

    /// True if it changed a state, an address or sessions.
    var hasChanged: Bool {
        guard case .recorded(_, let recorded) = effect else { return false }
        return recorded.outcome == .applied
    }
}

/// Stores notifications and dead letters in PostgreSQL: for requests, for the spool, and for replayed dead letters.
///
/// Only a fault of its own data makes a notification a dead letter (`store-rejected`). Every other error is thrown, and the
/// batch can be stored again: parts of it may be durable, which changes nothing.
final class Committer: Sendable {
    let source: NotificationSource
    private let months = Mutex(PartitionedMonths())

    init(source: NotificationSource) {
        self.source = source
    }

    /// Whether a batch needs no more than the one statement that records notifications.
    func isPlain(_ batch: [Submission]) -> Bool {
        let notifications = batch.notifications
        return notifications.count == batch.count && months.withLock { $0.missing(for: notifications).isEmpty }
    }

    func commit(_ batch: [Submission], on connection: PostgresConnection) async throws(PostgresError) -> [Settled] {
        let notifications = batch.notifications
        let missing = months.withLock { $0.missing(for: notifications) }
        let settled = try await connection.withSession { session throws(PostgresError) in
            try Self.ensure(missing, in: session)
            do throws(PostgresError) {
                return try self.store(batch, in: session)
            } catch let error where error.isMissingPartition {
                // Another session dropped a partition that existed.
                try Self.ensure(PartitionedMonths().missing(for: notifications), in: session)
                return try self.store(batch, in: session)
            }
        }
        months.withLock { $0.insert(missing) }
        return settled
    }

    /// Creates partitions also for the month after, so that it begins with its own.
    private static func ensure(_ months: [WallTime], in session: borrowing Session) throws(PostgresError) {
        for time in months {
            let ahead = time == months.last ? Duration.seconds(32 * 86_400) : .zero
            try Notifications.ensurePartitions(from: time, through: time + ahead, in: session)
        }
    }

    private func store(_ batch: [Submission], in session: borrowing Session) throws(PostgresError) -> [Settled] {
        var settled: [Settled] = []
        var notifications: [(submission: Submission, received: ReceivedNotification)] = []
        var letters: [(submission: Submission, received: ReceivedDeadLetter)] = []
        for submission in batch {
            switch submission.work {
            case .notification(let received): notifications.append((submission, received))
            case .deadLetter(let letter, _): letters.append((submission, letter))
            }
        }
        let recordings = try record(notifications.map(\.received), in: session)
        for (item, recording) in zip(notifications, recordings) {
            switch recording {
            case .success(let recorded):
                settled.append(Settled(submission: item.submission, effect: .recorded(item.received, recorded)))
            case .failure(let error):
                letters.append((item.submission, ReceivedDeadLetter(rejected: item.received, by: error)))
            }
        }
        guard !letters.isEmpty else { return settled }
        let ids = try DeadLetters.record(letters.map(\.received), in: session)
        return settled
            + zip(letters, ids).map { item, id in
                Settled(submission: item.submission, effect: .letterKept(item.received, id: id))
            }
    }

    /// Records notifications. If their data are refused, each half is recorded by itself, down to the one that is refused. A
    /// replay does the same if they can't be stored at present.
    ///
    /// - Parameter session: for a replay, a transaction.
    /// - Returns: for each, in their order, its effect or the error with which PostgreSQL refuses it.
    func record(
        _ batch: [ReceivedNotification],
        in session: borrowing Session
    ) throws(PostgresError) -> [Result<RecordedNotification, PostgresError>] {
        var end: ContinuousClock.Instant?
        return try record(batch, until: &end, in: session)
    }

    /// - Parameter end: when the search for notifications that can't be stored at present ends; nil: none was found yet.
    private func record(
        _ batch: [ReceivedNotification],
        until end: inout ContinuousClock.Instant?,
        isSecondAttempt: Bool = false,
        in session: borrowing Session
    ) throws(PostgresError) -> [Result<RecordedNotification, PostgresError>] {
        guard !batch.isEmpty else { return [] }
        let failure: PostgresError
        do throws(PostgresError) {
            return try recordRetrying(batch, in: session).map { .success($0) }
        } catch let error where error.blamesData || source == .replay && error.holdsUp {
            failure = error
        }
        if !failure.blamesData {
            if end == nil {
                end = ContinuousClock.now + Self.replayPatience
                // Live traffic may wait for what this transaction has locked.
                try session.execute(script: "SET LOCAL lock_timeout = \(Self.replayLockTimeout)")
            }
            let isOver = end.map { $0 < .now } ?? true
            if isOver || batch.count == 1 { return batch.map { _ in .failure(failure) } }
        }
        guard batch.count > 1 else {
            // A key that another writer, or an erasure, changed at the same time looks like a fault of the data once.
            if isSecondAttempt { return [.failure(failure)] }
            return try record(batch, until: &end, isSecondAttempt: true, in: session)
        }
        let half = batch.count / 2
        let first = try record(Array(batch.prefix(half)), until: &end, in: session)
        return first + (try record(Array(batch.dropFirst(half)), until: &end, in: session))
    }

    /// How long a replay looks for the notifications of a batch that can't be stored at present: well below the deadline of its
    /// transaction.
    private static let replayPatience = Duration.seconds(5)
    /// How long a replay waits for each lock from then on, in milliseconds.
    private static let replayLockTimeout = 100

    private func recordRetrying(
        _ batch: [ReceivedNotification],
        in session: borrowing Session
    ) throws(PostgresError) -> [RecordedNotification] {
        var conflicts = 0
        while true {
            do throws(PostgresError) {
                switch source {
                case .endpoint, .spool:
                    return try Notifications.record(batch, source: source, in: session)
                case .replay:
                    return try session.savepoint { session throws(PostgresError) in
                        let recorded = try Notifications.record(batch, source: .replay, in: session)
                        try Notifications.checkDeferredConstraints(in: session)
                        return recorded
                    }
                }
            } catch let error where error.isConflict && conflicts < Self.maximumConflicts {
                conflicts += 1
                // Blocks the connection's own thread, as a statement would.
                let longest = Self.longestPause(afterConflicts: conflicts)
                if longest > .zero { usleep(UInt32.random(in: 0...UInt32(longest / .microseconds(1)))) }
            }
        }
    }

    /// How often a batch is tried again that lost against another writer, or was chosen to resolve a deadlock.
    static let maximumConflicts = 20

    /// The longest pause after so many conflicts in a row. The first few attempts follow immediately; writers that continue
    /// to conflict need to come apart.
    static func longestPause(afterConflicts conflicts: Int) -> Duration {
        conflicts > 3 ? .milliseconds(1 << min(conflicts - 3, 5)) : .zero
    }
}

/// Stores a batch by parts: a notification that PostgreSQL refuses, or that waits for a lock, delays no other.
struct Bisection {
    /// How long to continue without storing anything. A refused part fails immediately, so that each one is tried; parts that
    /// wait for a lock or a hanging server are given up, because no lost connection is replaced while they wait.
    static let patience = Duration.seconds(10)
    /// The number of parts that a failed one is divided into. A part may take as long to fail as a lock is waited for, so
    /// there are few steps down to a single notification.
    private static let divisor = 16

    private(set) var stored = 0
    /// Positions of submissions that were tried alone and failed.
    private(set) var refused: Set<Int> = []
    /// Positions of submissions that were not tried, because the connection or the server is the cause.
    private(set) var untried: Set<Int> = []
    private(set) var refusal: PostgresError?
    /// Why not all were tried; nil if all were.
    private(set) var failure: PostgresError?

    /// - Parameters:
    ///   - error: the error of the whole batch, if it was tried already.
    ///   - attempt: stores some of the batch in one transaction.
    init(
        _ batch: [Submission],
        after error: PostgresError? = nil,
        patience: Duration = patience,
        attempt: ([Submission]) async -> PostgresError?
    ) async {
        var parts = batch.isEmpty ? [] : [batch.indices]
        var lastSuccess = ContinuousClock.now
        var known = error
        while let part = parts.first {
            parts.removeFirst()
            var failure = known.take()
            if failure == nil { failure = await attempt(Array(batch[part])) }
            guard let error = failure else {
                stored += part.count
                lastSuccess = .now
                continue
            }
            guard error.maySpareOthers, .now - lastSuccess < patience, !Task.isCancelled else {
                self.failure = error
                untried = Set(parts.joined()).union(part)
                return
            }
            guard part.count > 1 else {
                refusal = refusal ?? error
                refused.insert(part.lowerBound)
                continue
            }
            let size = (part.count + Self.divisor - 1) / Self.divisor
            let smaller = stride(from: part.lowerBound, to: part.upperBound, by: size).map { start in
                start..<min(start + size, part.upperBound)
            }
            // In random order and after the larger ones, so that the same parts don't always use up the patience.
            parts += smaller.shuffled()
        }
    }
}

/// The months that are known to have a partition, so that the database is asked only for others.
struct PartitionedMonths: Sendable {
    private var known: Set<Int> = []

    var isEmpty: Bool { known.isEmpty }

    /// A time in each month to create before notifications are recorded, in order.
    func missing(for notifications: [ReceivedNotification]) -> [WallTime] {
        var missing: [Int: WallTime] = [:]
        for time in notifications.lazy.map(\.notification.issuedAt) where !known.contains(time.month) {
            missing[time.month] = time
        }
        return missing.values.sorted()
    }

    mutating func insert(_ months: [WallTime]) {
        known.formUnion(months.map(\.month))
    }
}

extension [Submission] {
    var notifications: [ReceivedNotification] {
        compactMap { submission in
            switch submission.work {
            case .notification(let received): received
            case .deadLetter: nil
            }
        }
    }
}

extension ReceivedDeadLetter {
    var isVerified: Bool { letter.verifiedKeyID != nil }

    /// The part of the spool that it may use.
    var share: Spool.Share { isVerified ? .letters : .unverified }

    init(_ letter: DeadLetter, receivedAt: WallTime) {
        self.init(letter, tokenDigest: SHA256.digest(letter.token.span), receivedAt: receivedAt)
    }

    init(rejected received: ReceivedNotification, by error: PostgresError) {
        let detail = "PostgreSQL refused it (\(error.refusal))."
        self.init(.storeRejected(received.notification, detail: detail), receivedAt: received.receivedAt)
    }
}

extension PostgresError {
    /// Whether a month has no partition: SQLSTATE 23514 as for a violated CHECK, but with a table and no constraint. A trigger
    /// that raises the same code names neither.
    var isMissingPartition: Bool {
        sqlState == .checkViolation && constraintName == nil && tableName == "notifications"
    }

    /// Whether PostgreSQL generated a key that a row has already: the sequence is behind its table, as after a restore of the
    /// data alone or with logical replication.
    var takesGeneratedKey: Bool {
        sqlState == .uniqueViolation && schemaName == "siwa"
            && ["accounts_pkey", "account_changes_pkey", "dead_letters_pkey"].contains(constraintName)
    }

    var blamesData: Bool { isDataError && !isMissingPartition && !takesGeneratedKey }

    /// Whether a replay leaves out the notification that is the cause, as it can't be stored at present.
    var holdsUp: Bool { code == .server && maySpareOthers && !isConflict && !isMissingPartition }

    /// The description, with the remedy if a sequence is behind.
    var advised: String {
        guard takesGeneratedKey else { return description }
        return "\(description); the sequence of this key is behind its table: advance it with setval()"
    }

    /// Whether the cause may be one notification of several: a trigger refuses it, say, or it waits for a row that an
    /// application has locked. It may be the server as well, such as a missing right.
    var maySpareOthers: Bool {
        switch code {
        case .timedOut: return true
        case .server: break
        case .connectionFailed, .connectionLost, .cancelled, .decoding, .migration, .usage: return false
        }
        if isConflict || sqlState == .lockNotAvailable || sqlState == .queryCanceled { return true }
        // Class 25: read-only, as a standby is.
        return !isRetryable && sqlState?.classCode != "25"
    }

    /// The names of what refused the data: `SQLSTATE 23514, constraint no_poison of siwa.accounts`. An error that a trigger
    /// raises has none unless its author names them.
    var refusal: String {
        var parts = ["SQLSTATE \(sqlState?.rawValue ?? "unknown")"]
        if let constraintName { parts.append("constraint \(constraintName)") }
        if let columnName { parts.append("column \(columnName)") }
        guard let tableName else { return parts.joined(separator: ", ") }
        let table = schemaName.map { "\($0).\(tableName)" } ?? tableName
        let isPart = constraintName != nil || columnName != nil
        return parts.joined(separator: ", ") + (isPart ? " of \(table)" : ", table \(table)")
    }
}
