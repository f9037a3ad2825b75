package import AppleTokens
package import Postgres

/// An open dead letter that this transaction holds: nobody else touches it until it ends.
package struct ClaimedDeadLetter: Sendable, Equatable {
    /// Its number.
    package let id: Int64
    /// Why it was kept.
    package let reason: DeadLetterReason
    /// When it was received.
    package let receivedAt: WallTime
    /// The key that verified it at receipt; nil: it was never verified.
    package let verifiedKeyID: String?
    /// The compact JWS, or the request's body that held it; empty once it was erased.
    package let body: [UInt8]
}

/// A dead letter that was processed after all, and what that did.
package struct ReplayedDeadLetter: Sendable, Equatable {
    /// Its number.
    package let id: Int64
    /// What its notification did.
    package let outcome: NotificationOutcome
    /// What was found in it, which a letter that was kept unverified does not tell. nil: what is known of it stays.
    package let notification: VerifiedNotification?

    /// A letter whose notification had this outcome.
    package init(id: Int64, outcome: NotificationOutcome, notification: VerifiedNotification?) {
        self.id = id
        self.outcome = outcome
        self.notification = notification
    }
}

/// A dead letter that could not be processed once more.
package struct FailedDeadLetter: Sendable, Equatable {
    /// Its number.
    package let id: Int64
    /// What the attempt found. What it leaves out stays as it was known.
    package let letter: DeadLetter

    /// A letter whose attempt found this.
    package init(id: Int64, letter: DeadLetter) {
        self.id = id
        self.letter = letter
    }
}

extension DeadLetters {
    /// The ids of all open letters without a verified signature.
    package static func unverified(in session: borrowing Session) throws(PostgresError) -> [Int64] {
        try session.execute(unverified).map { (rows, row) throws(PostgresError) in try rows.int64(row, 0) }
    }

    /// Those of some letters that are open, for looking at them: no lock is taken.
    package static func open(ids: [Int64], in session: borrowing Session) throws(PostgresError) -> [ClaimedDeadLetter] {
        try claimed(try session.execute(openOnes, Binds { $0.append(array: ids) }))
    }

    private static let unverified = Statement(
        once: "SELECT id FROM siwa.dead_letters WHERE status = 'open' AND reason = 'keys-unavailable' ORDER BY id"
    )

    private static let openOnes = Statement(
        once: """
            SELECT id, reason, received_at, verified_kid, body FROM siwa.dead_letters
            WHERE id = ANY ($1) AND status = 'open'
            ORDER BY id
            """
    )

    /// Takes the next open letters that match, by their ids, and leaves out those that another transaction holds: so
    /// several operators share the work.
    ///
    /// - Parameters:
    ///   - after: the last id that was looked at.
    ///   - through: the last id of the run.
    package static func claim(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [ClaimedDeadLetter] {
        let conditions = DeadLetterConditions(filter, status: .open)
        try transaction.execute(script: planning(filter))
        let statement = Statement(
            once: """
                SELECT id, reason, received_at, verified_kid, body FROM siwa.dead_letters
                WHERE \(conditions.sql) AND id > \(after) AND id <= \(through)
                ORDER BY id LIMIT \(limit) FOR UPDATE SKIP LOCKED
                """
        )
        let rows = try transaction.execute(statement, conditions.binds)
        try transaction.execute(script: planningAsBefore)
        return try claimed(rows)
    }

    private static func claimed(_ rows: borrowing Rows) throws(PostgresError) -> [ClaimedDeadLetter] {
        try rows.map { (rows, row) throws(PostgresError) in
            guard let reason = DeadLetterReason(rawValue: try rows.string(row, 1)) else {
                throw PostgresError(
                    .decoding,
                    "a dead letter has an unknown reason; use the siwad that migrated the database"
                )
            }
            return ClaimedDeadLetter(
                id: try rows.int64(row, 0),
                reason: reason,
                receivedAt: try rows.time(row, 2),
                verifiedKeyID: try rows.optionalString(row, 3),
                body: try rows.bytes(row, 4)
            )
        }
    }

    /// Marks claimed letters as replayed, in the transaction that records their notifications. Each says from then on whom
    /// it is about, so that it is erased with the account.
    package static func resolve(
        _ letters: [ReplayedDeadLetter],
        by operatorName: String,
        note: String,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        guard !letters.isEmpty else { return }
        _ = try transaction.execute(
            resolve,
            Binds { binds in
                binds.appendInt64s(letters.count) { letters[$0].id }
                binds.appendTexts(letters.count) { letters[$0].outcome.rawValue }
                binds.appendTexts(letters.count) { letters[$0].notification?.id.rawValue }
                binds.appendTexts(letters.count) { letters[$0].notification?.audience }
                binds.appendTexts(letters.count) { letters[$0].notification?.event.subject.rawValue }
                binds.appendTexts(letters.count) { letters[$0].notification?.event.rawType }
                binds.appendTexts(letters.count) { letters[$0].notification?.keyID }
                binds.append(operatorName)
                binds.append(note)
            }
        )
    }

    /// Notes what another attempt at claimed letters found; what the attempt before found moves to the attempts.
    package static func fail(
        _ letters: [FailedDeadLetter],
        by operatorName: String,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        guard !letters.isEmpty else { return }
        _ = try transaction.execute(
            fail,
            Binds { binds in
                binds.appendInt64s(letters.count) { letters[$0].id }
                binds.appendTexts(letters.count) { letters[$0].letter.reason.rawValue }
                binds.appendTexts(letters.count) { letters[$0].letter.detail }
                binds.appendTexts(letters.count) { letters[$0].letter.notificationID }
                binds.appendTexts(letters.count) { letters[$0].letter.audience }
                binds.appendTexts(letters.count) { letters[$0].letter.subject }
                binds.appendTexts(letters.count) { letters[$0].letter.eventType }
                binds.appendTexts(letters.count) { letters[$0].letter.verifiedKeyID }
                binds.append(operatorName)
            }
        )
    }

    // `id = ANY` beside the join: with the writer's settings, which forbid nested loops, only that finds the rows by
    // their index.
    private static let resolve = Statement(String(sql: PackageResources.resolve_letters_sql))

    private static let fail = Statement(String(sql: PackageResources.fail_letters_sql))
}
