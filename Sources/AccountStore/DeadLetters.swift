package import AppleTokens
package import Postgres

/// A dead letter and how it reached us.
package struct ReceivedDeadLetter: Sendable, Equatable {
    /// What is kept, and why.
    package let letter: DeadLetter
    /// SHA-256 of the compact JWS: one letter is open for it, however often it comes.
    package let tokenDigest: [UInt8]
    /// When its request was read, by this machine's clock.
    package let receivedAt: WallTime

    /// A dead letter that was received at a time.
    package init(_ letter: DeadLetter, tokenDigest: [UInt8], receivedAt: WallTime) {
        self.letter = letter
        self.tokenDigest = tokenDigest
        self.receivedAt = receivedAt
    }
}

/// The writing and counting of dead letters (`siwa.dead_letters`).
package enum DeadLetters {
    /// Keeps dead letters. One whose token has an open letter counts as a further delivery of it; one whose `jti` was
    /// recorded as a notification needs no letter.
    ///
    /// - Returns: for each letter, whether a row was added.
    package static func record(
        _ batch: [ReceivedDeadLetter],
        in session: borrowing Session
    ) throws(PostgresError) -> [Bool] {
        let rows = try session.execute(record, binds(batch))
        var isNew = [Bool](repeating: false, count: batch.count)
        for row in 0..<rows.count {
            isNew[Int(try rows.int64(row, 0)) - 1] = true
        }
        return isNew
    }

    /// How many letters are open, by reason; reasons without any are left out.
    package static func countOpen(in session: borrowing Session) throws(PostgresError) -> [DeadLetterReason: Int] {
        let rows = try session.execute(countOpen)
        var counts: [DeadLetterReason: Int] = [:]
        for row in 0..<rows.count {
            guard let reason = DeadLetterReason(rawValue: try rows.string(row, 0)) else { continue }
            counts[reason] = Int(try rows.int64(row, 1))
        }
        return counts
    }

    private static let countOpen = Statement(
        "SELECT reason, count(*) FROM siwa.dead_letters WHERE status = 'open' GROUP BY reason"
    )

    /// The same token twice in one batch can't be counted twice by one INSERT: the first stands for all of them.
    ///
    /// The message to the write-ahead log has the commit wait for disk and standbys also when there is nothing to keep: the
    /// one that brought the notification may be one that was never confirmed.
    private static let record = Statement(String(sql: PackageResources.record_letters_sql))

    private static func binds(_ batch: [ReceivedDeadLetter]) -> Binds {
        let count = batch.count
        return Binds { binds in
            binds.appendTimestamps(count) { Timestamp(batch[$0].receivedAt) }
            binds.appendTexts(count) { batch[$0].letter.reason.rawValue }
            binds.appendTexts(count) { batch[$0].letter.detail }
            // The token alone: what a request had around it says nothing, and may be many times as long.
            binds.appendBytes(count) { batch[$0].letter.token }
            binds.appendBytes(count) { batch[$0].tokenDigest }
            binds.appendTexts(count) { batch[$0].letter.notificationID }
            binds.appendTexts(count) { batch[$0].letter.audience }
            binds.appendTexts(count) { batch[$0].letter.subject }
            binds.appendTexts(count) { batch[$0].letter.eventType }
            binds.appendTexts(count) { batch[$0].letter.verifiedKeyID }
        }
    }
}
