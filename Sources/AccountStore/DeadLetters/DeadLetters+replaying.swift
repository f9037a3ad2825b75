package import AppleTokens
package import Basics
package import Postgres

/// An open dead letter that the transaction has locked.
package struct ClaimedDeadLetter: Sendable, Equatable {
    package let id: Int64
    package let reason: DeadLetterReason
    package let receivedAt: WallTime
    /// The key that verified it at receipt; nil if it was never verified.
    package let verifiedKeyID: String?
    /// The compact JWS, or the request's body that contained it; empty after erasure.
    package let body: [UInt8]
}

package struct ReplayedDeadLetter: Sendable, Equatable {
    package let id: Int64
    package let outcome: NotificationOutcome
    /// The content of the letter, which a letter that was stored unverified does not have yet. nil leaves the row as it is.
    package let notification: VerifiedNotification?

    package init(id: Int64, outcome: NotificationOutcome, notification: VerifiedNotification?) {
        self.id = id
        self.outcome = outcome
        self.notification = notification
    }
}

package struct FailedDeadLetter: Sendable, Equatable {
    package let id: Int64
    /// The finding of the attempt. A nil field leaves the stored value as it is.
    package let letter: DeadLetter

    package init(id: Int64, letter: DeadLetter) {
        self.id = id
        self.letter = letter
    }
}

extension DeadLetters {
    /// The ids of all open letters without a verified signature.
    package static func unverified(in session: borrowing Session) throws(PostgresError) -> [Int64] {
        try session.execute(
            once: "SELECT id FROM siwa.dead_letters WHERE status = 'open' AND reason = 'keys-unavailable' ORDER BY id"
        ).decode { (id: Int64) in id }
    }

    /// The letters among `ids` that are open, without locking them.
    package static func open(ids: [Int64], in session: borrowing Session) throws(PostgresError) -> [ClaimedDeadLetter] {
        let statement = Statement(
            once: """
                SELECT \(columnsOfClaim) FROM siwa.dead_letters
                WHERE id = ANY ($1) AND status = 'open'
                ORDER BY id
                """
        )
        return try session.execute(statement, Binds { $0.append(array: ids) }).decode(ClaimedDeadLetter.init)
    }

    /// Locks the next open letters that match, and skips letters that another transaction has locked. Several operators can
    /// therefore share the work.
    package static func claim(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [ClaimedDeadLetter] {
        let conditions = Conditions(filter, status: .open)
        try transaction.execute(script: planning(filter))
        let statement = Statement(
            once: """
                SELECT \(columnsOfClaim) FROM siwa.dead_letters
                WHERE \(conditions.sql) AND id > \(after) AND id <= \(through)
                ORDER BY id LIMIT \(limit) FOR UPDATE SKIP LOCKED
                """
        )
        let rows = try transaction.execute(statement, conditions.binds)
        try transaction.execute(script: planningAsBefore)
        return try rows.decode(ClaimedDeadLetter.init)
    }

    /// Marks claimed letters as replayed, in the transaction that records their notifications. Stores which person each
    /// letter is about, so that it is erased with the account.
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
                binds.append(array: letters.map(\.id))
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

    /// Stores the finding of another failed attempt at claimed letters. The previous finding moves to the attempts.
    package static func fail(
        _ letters: [FailedDeadLetter],
        by operatorName: String,
        in transaction: borrowing Session
    ) throws(PostgresError) {
        guard !letters.isEmpty else { return }
        _ = try transaction.execute(
            fail,
            Binds { binds in
                binds.append(array: letters.map(\.id))
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

    /// The letters that a run already processed and that are about the same people as its next letters. A dry run needs
    /// them, because the effect of the next letters depends on them.
    ///
    /// - Returns: the ids in ascending order. Letters that were never verified name no person and are left out.
    package static func precedents(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [Int64] {
        let next = Conditions(filter, status: .open)
        try transaction.execute(script: planning(filter))
        let nextOnes = Statement(
            once: """
                SELECT DISTINCT sub
                FROM (
                    SELECT sub FROM siwa.dead_letters
                    WHERE \(next.sql) AND id > \(after) AND id <= \(through)
                    ORDER BY id LIMIT \(limit)
                ) AS n
                WHERE sub IS NOT NULL
                """
        )
        let subjects = try transaction.execute(nextOnes, next.binds).decode { (subject: String) in subject }

        var theirs = Conditions(filter, status: .open, isFurtherNarrowed: true)
        theirs.add("sub", anyOf: subjects)
        try transaction.execute(script: planningBySubject)
        // A person has few letters. The ids are filtered here, so that the planner can use only the index of sub.
        let statement = Statement(once: "SELECT id FROM siwa.dead_letters WHERE \(theirs.sql)")
        let ids = try transaction.execute(statement, theirs.binds).decode { (id: Int64) in id }
        try transaction.execute(script: planningAsBefore)
        return ids.filter { $0 <= after }.sorted()
    }

    // MARK: - Private parts

    private static let columnsOfClaim = "id, reason, received_at, verified_kid, body"

    /// Planner settings for reading the letters of a run in the order of their ids, until ``planningAsBefore``.
    ///
    /// A batch needs only the next few of possibly a million letters. Sorting is excluded because the planner would otherwise
    /// fetch and sort all matching letters for every batch. The LIMIT is written into the statement for the same reason. If
    /// the filter has ids or a person, few letters match and sorting them is right.
    private static func planning(_ filter: DeadLetterFilter) -> String {
        let areFew = !filter.ids.isEmpty || filter.subject != nil
        return areFew
            ? planningBySubject
            : "\(planningBySubject); SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off"
    }

    /// Planner settings for reading the letters of some people: the default cost of sequential pages, which
    /// ``Notifications/writerSettings`` raises.
    private static let planningBySubject =
        "SET LOCAL seq_page_cost = 1; SET LOCAL enable_sort = on; SET LOCAL enable_bitmapscan = on"

    /// ``Notifications/writerSettings`` again.
    private static let planningAsBefore =
        "SET LOCAL seq_page_cost = 1e9; SET LOCAL enable_sort = on; SET LOCAL enable_bitmapscan = on"

    private static let resolve = Statement(String(sql: PackageResources.resolve_letters_sql))
    private static let fail = Statement(String(sql: PackageResources.fail_letters_sql))
}
