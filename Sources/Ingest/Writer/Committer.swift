import AccountStore
import AppleTokens
import Glibc
import JOSE
import Postgres

/// A submission that is durable, with its response.
struct Settled: Sendable {
    enum Effect: Sendable {
        case recorded(ReceivedNotification, RecordedNotification)
        case letterKept(ReceivedDeadLetter, isNew: Bool)
    }

    let submission: Submission
    let response: IngestResponse
    let effect: Effect
}

/// Stores notifications and dead letters in PostgreSQL: for requests, for the spool, and for replayed dead letters.
///
/// Only a fault of its own data makes a notification a dead letter (`store-rejected`). Every other error is thrown, and the
/// batch can be stored again: parts of it may be durable, which changes nothing.
struct Committer: Sendable {
    /// The result for one notification: its effect, or the error with which PostgreSQL refuses its data.
    typealias Recording = Result<RecordedNotification, PostgresError>

    let source: NotificationSource
    private(set) var partitions = PartitionHorizon()

    init(source: NotificationSource) {
        self.source = source
    }

    // MARK: - Batches

    /// Whether a batch needs no more than the one statement that records notifications.
    func isPlain(_ batch: [Submission]) -> Bool {
        let isPlain = batch.allSatisfy { submission in
            switch submission.work {
            case .notification: true
            case .deadLetter: false
            }
        }
        return isPlain && partitions.missing(for: batch.issueTimes).isEmpty
    }

    /// Stores a batch: the notifications with one statement, the dead letters with another.
    mutating func commit(
        _ batch: [Submission],
        on connection: PostgresConnection
    ) async throws(PostgresError) -> [Settled] {
        let committer = self
        let missing = partitions.missing(for: batch.issueTimes)
        let settled = try await connection.withSession { session throws(PostgresError) in
            try committer.ensure(missing, in: session)
            do throws(PostgresError) {
                return try committer.store(batch, in: session)
            } catch let error where error.isMissingPartition {
                // Another session dropped a partition that existed.
                try committer.ensure(PartitionHorizon().missing(for: batch.issueTimes), in: session)
                return try committer.store(batch, in: session)
            }
        }
        partitions.ensured(missing)
        return settled
    }

    private func ensure(_ stretches: [PartitionHorizon.Stretch], in session: borrowing Session) throws(PostgresError) {
        for stretch in stretches {
            try Notifications.ensurePartitions(from: stretch.from, through: stretch.through, in: session)
        }
    }

    private func store(_ batch: [Submission], in session: borrowing Session) throws(PostgresError) -> [Settled] {
        var settled: [Settled] = []
        settled.reserveCapacity(batch.count)
        var notifications: [(submission: Submission, received: ReceivedNotification)] = []
        notifications.reserveCapacity(batch.count)
        var letters: [(submission: Submission, received: ReceivedDeadLetter, response: IngestResponse)] = []
        for submission in batch {
            switch submission.work {
            case .notification(let received): notifications.append((submission, received))
            case .deadLetter(let letter, let response): letters.append((submission, letter, response))
            }
        }
        let recordings = try record(notifications.map(\.received), in: session)
        for (item, recording) in zip(notifications, recordings) {
            switch recording {
            case .success(let recorded):
                let effect = Settled.Effect.recorded(item.received, recorded)
                settled.append(Settled(submission: item.submission, response: .acknowledged, effect: effect))
            case .failure(let error):
                letters.append((item.submission, ReceivedDeadLetter(rejected: item.received, by: error), .acknowledged))
            }
        }
        guard !letters.isEmpty else { return settled }
        let isNew = try DeadLetters.record(letters.map(\.received), in: session)
        for (item, isNew) in zip(letters, isNew) {
            let effect = Settled.Effect.letterKept(item.received, isNew: isNew)
            settled.append(Settled(submission: item.submission, response: item.response, effect: effect))
        }
        return settled
    }

    // MARK: - Notifications

    /// Records notifications. If their data are refused, each half is recorded by itself, down to the one that is refused.
    ///
    /// - Parameter session: for a replay, a transaction.
    /// - Returns: a result for each, in their order.
    func record(_ batch: [ReceivedNotification], in session: borrowing Session) throws(PostgresError) -> [Recording] {
        var recordings: [Recording] = []
        recordings.reserveCapacity(batch.count)
        try record(batch[...], &recordings, in: session)
        return recordings
    }

    private func record(
        _ batch: ArraySlice<ReceivedNotification>,
        _ recordings: inout [Recording],
        isSecondAttempt: Bool = false,
        in session: borrowing Session
    ) throws(PostgresError) {
        guard !batch.isEmpty else { return }
        do throws(PostgresError) {
            for recorded in try recordRetrying(Array(batch), in: session) { recordings.append(.success(recorded)) }
        } catch let error where error.blamesData && batch.count > 1 {
            let middle = batch.startIndex + batch.count / 2
            try record(batch[..<middle], &recordings, in: session)
            try record(batch[middle...], &recordings, in: session)
        } catch let error where error.blamesData {
            guard isSecondAttempt else {
                // A key that another writer, or an erasure, changed at the same time looks like a fault of the data once.
                return try record(batch, &recordings, isSecondAttempt: true, in: session)
            }
            recordings.append(.failure(error))
        }
    }

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
    /// The first reason for a refusal.
    private(set) var refusal: PostgresError?
    /// Why not all were tried; nil if all were.
    private(set) var failure: PostgresError?

    /// Stores what can be stored.
    ///
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
            let result: PostgresError?
            if let error = known.take() {
                result = error
            } else {
                result = await attempt(Array(batch[part]))
            }
            guard let error = result else {
                stored += part.count
                lastSuccess = .now
                continue
            }
            guard error.maySpareOthers, .now - lastSuccess < patience, !Task.isCancelled else {
                failure = error
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
struct PartitionHorizon: Sendable {
    struct Stretch: Sendable, Equatable {
        let from: WallTime
        let through: WallTime
    }

    /// Two times that are no further apart have no month between their own.
    private static let bridge = Duration.seconds(28 * 86_400)
    /// Partitions are made ahead, so that the next month begins with its own.
    private static let ahead = Duration.seconds(32 * 86_400)

    private var known: Stretch?

    var isEmpty: Bool { known == nil }

    /// The months to create before notifications of these times of issue are recorded.
    ///
    /// Distant times are separate stretches: one old notification must not create all the years since.
    func missing(for issued: some Sequence<WallTime>) -> [Stretch] {
        var times: [WallTime] = []
        for issued in issued {
            if let known, known.from <= issued, issued <= known.through { continue }
            times.append(issued)
        }
        guard !times.isEmpty else { return [] }
        times.sort()
        var stretches: [Stretch] = []
        for time in times {
            if let last = stretches.last, time <= last.through + Self.bridge {
                stretches[stretches.count - 1] = Stretch(from: last.from, through: time)
            } else {
                stretches.append(Stretch(from: time, through: time))
            }
        }
        let last = stretches.removeLast()
        stretches.append(Stretch(from: last.from, through: last.through + Self.ahead))
        return stretches
    }

    /// These exist now. Only the stretch around the present is remembered: an old notification is rare.
    mutating func ensured(_ stretches: [Stretch]) {
        guard let latest = stretches.last else { return }
        guard let known else {
            self.known = latest
            return
        }
        guard latest.through > known.through else { return }
        let touches = latest.from <= known.through + Self.bridge
        self.known = touches ? Stretch(from: min(known.from, latest.from), through: latest.through) : latest
    }

    mutating func forget() {
        known = nil
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

    fileprivate var issueTimes: some Sequence<WallTime> {
        lazy.compactMap { submission in
            switch submission.work {
            case .notification(let received): received.notification.issuedAt
            case .deadLetter: nil
            }
        }
    }
}

extension ReceivedDeadLetter {
    /// The dead letter of a notification whose data PostgreSQL refuses.
    init(rejected received: ReceivedNotification, by error: PostgresError) {
        let token = received.notification.token
        self.init(
            .storeRejected(received.notification, detail: "PostgreSQL refused it (\(error.refusal))."),
            tokenDigest: SHA256.digest(token.span),
            receivedAt: received.receivedAt
        )
    }
}

extension PostgresError {
    /// Whether a month has no partition: SQLSTATE 23514 as for a violated CHECK, but with a table and no constraint. A trigger
    /// that raises the same code names neither.
    var isMissingPartition: Bool {
        sqlState == .checkViolation && constraintName == nil && tableName == "notifications"
    }

    /// Whether a month can't have its partition: a table of that name exists, but is not a partition.
    var isMissingMonth: Bool { sqlState == .objectNotInPrerequisiteState }

    /// Whether a notification's own data are refused.
    var blamesData: Bool { isDataError && !isMissingPartition }

    /// Whether another transaction interfered, so that the same statement may succeed now.
    var isConflict: Bool {
        sqlState == .serializationFailure || sqlState == .deadlockDetected
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
    fileprivate var refusal: String {
        var parts = ["SQLSTATE \(sqlState?.rawValue ?? "unknown")"]
        if let constraintName { parts.append("constraint \(constraintName)") }
        if let columnName { parts.append("column \(columnName)") }
        guard let tableName else { return parts.joined(separator: ", ") }
        let table = schemaName.map { "\($0).\(tableName)" } ?? tableName
        let isPart = constraintName != nil || columnName != nil
        return parts.joined(separator: ", ") + (isPart ? " of \(table)" : ", table \(table)")
    }
}
