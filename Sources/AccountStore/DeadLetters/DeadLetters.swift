package import AppleTokens
package import Basics
package import Postgres

/// A dead letter and when its request arrived.
package struct ReceivedDeadLetter: Sendable, Equatable {
    package let letter: DeadLetter
    /// SHA-256 of the compact JWS. At most one letter is open for it, however often it arrives.
    package let tokenDigest: [UInt8]
    /// When the request was read, by this machine's clock.
    package let receivedAt: WallTime

    package init(_ letter: DeadLetter, tokenDigest: [UInt8], receivedAt: WallTime) {
        self.letter = letter
        self.tokenDigest = tokenDigest
        self.receivedAt = receivedAt
    }
}

/// How a batch of letters was discarded or reopened.
package struct DeadLetterResolution: Sendable, Equatable {
    package let changed: Int
    /// The number of letters that had to stay as they were.
    package let refused: Int
    /// The last id that was examined; nil if no letter was left.
    package let lastID: Int64?
}

/// Stores, counts, discards and reopens dead letters (`siwa.dead_letters`).
///
/// A run processes letters in batches, in the order of their ids: `after` is the last id that was examined, `through` the last
/// id of the run.
package enum DeadLetters {
    /// Stores dead letters. A letter whose token has an open letter counts as a further delivery of it. A letter whose
    /// `jti` is recorded as a notification is not stored.
    ///
    /// - Returns: the id of each letter for which a row was added.
    package static func record(
        _ batch: [ReceivedDeadLetter],
        in session: borrowing Session
    ) throws(PostgresError) -> [Int64?] {
        let count = batch.count
        let binds = Binds { binds in
            binds.appendTimestamps(count) { Timestamp(batch[$0].receivedAt) }
            binds.appendTexts(count) { batch[$0].letter.reason.rawValue }
            binds.appendTexts(count) { batch[$0].letter.detail }
            // Only the token: the rest of the request has no meaning and may be many times as long.
            binds.appendBytes(count) { batch[$0].letter.token }
            binds.appendBytes(count) { batch[$0].tokenDigest }
            binds.appendTexts(count) { batch[$0].letter.notificationID }
            binds.appendTexts(count) { batch[$0].letter.audience }
            binds.appendTexts(count) { batch[$0].letter.subject }
            binds.appendTexts(count) { batch[$0].letter.eventType }
            binds.appendTexts(count) { batch[$0].letter.verifiedKeyID }
        }
        let rows = try session.execute(record, binds)
        var ids = [Int64?](repeating: nil, count: batch.count)
        for row in 0..<rows.count {
            ids[Int(try rows.int64(row, 0)) - 1] = try rows.int64(row, 1)
        }
        return ids
    }

    /// The number of open letters by reason; reasons without letters are left out.
    package static func countOpen(in session: borrowing Session) throws(PostgresError) -> [DeadLetterReason: Int] {
        let rows = try session.execute(countOpen)
        var counts: [DeadLetterReason: Int] = [:]
        for row in 0..<rows.count {
            guard let reason = DeadLetterReason(rawValue: try rows.string(row, 0)) else { continue }
            counts[reason] = try rows.value(row, 1)
        }
        return counts
    }

    /// Discards the next open letters that match. Their rows stay, with the operator and the note.
    package static func discard(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        by operatorName: String,
        note: String,
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterResolution {
        try resolve(filter, .open, "true", after...through, limit, in: session) { conditions in
            let (name, note) = (conditions.bind(operatorName), conditions.bind(note))
            return "status = 'discarded', resolved_at = now(), resolved_by = \(name), note = \(note)"
        }
    }

    /// Opens the next discarded letters that match again. A letter stays discarded if its token arrived again and has an open
    /// letter, or if its body was erased: it can't be processed any more.
    package static func reopen(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        note: String,
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterResolution {
        // If several discarded letters have one token, only the first is opened.
        let canBeOpened = """
            is_complete AND row_number() OVER (PARTITION BY token_digest ORDER BY id) = 1
            AND NOT EXISTS (
                SELECT FROM siwa.dead_letters AS o WHERE o.token_digest = next.token_digest AND o.status = 'open'
            )
            """
        return try resolve(filter, .discarded, canBeOpened, after...through, limit, in: session) { conditions in
            "status = 'open', resolved_at = NULL, resolved_by = NULL, note = \(conditions.bind(note))"
        }
    }

    /// Deletes the letters without a verified signature that `operatorName` discarded, except the latest `count`.
    package static func deleteUnverified(
        discardedBy operatorName: String,
        sparing count: Int,
        in session: borrowing Session
    ) throws(PostgresError) {
        _ = try session.execute(
            once: """
                WITH discarded AS MATERIALIZED (
                    SELECT id FROM siwa.dead_letters
                    WHERE status = 'discarded' AND reason = 'keys-unavailable' AND verified_kid IS NULL
                        AND resolved_by = $1
                )
                DELETE FROM siwa.dead_letters
                WHERE id = ANY (ARRAY(SELECT id FROM discarded ORDER BY id DESC OFFSET $2))
                """,
            operatorName,
            count
        )
    }

    // MARK: - Private parts

    /// - Parameters:
    ///   - condition: SQL that decides whether a letter of `next` may be changed.
    ///   - ids: from after the lower bound through the upper bound.
    ///   - assignments: binds its values and returns SQL for `SET`.
    private static func resolve(
        _ filter: DeadLetterFilter,
        _ status: DeadLetterStatus,
        _ condition: String,
        _ ids: ClosedRange<Int64>,
        _ limit: Int,
        in session: borrowing Session,
        assignments: (inout Conditions) -> String
    ) throws(PostgresError) -> DeadLetterResolution {
        var conditions = Conditions(filter, status: status)
        conditions.add("id > ?", ids.lowerBound)
        conditions.add("id <= ?", ids.upperBound)
        let limit = conditions.bind(limit)
        let assignments = assignments(&conditions)
        let statement = Statement(
            once: """
                WITH next AS MATERIALIZED (
                    SELECT id, token_digest, octet_length(body) > 0 AS is_complete FROM siwa.dead_letters
                    WHERE \(conditions.sql)
                    ORDER BY id LIMIT \(limit) FOR UPDATE SKIP LOCKED
                ),
                changed AS (
                    UPDATE siwa.dead_letters SET \(assignments)
                    WHERE id = ANY (ARRAY(SELECT id FROM (SELECT id, \(condition) AS fits FROM next) AS n WHERE fits))
                    RETURNING id
                )
                SELECT (SELECT count(*) FROM changed), count(*), max(id) FROM next
                """
        )
        return try session.execute(statement, conditions.binds).decode {
            (changed: Int, examined: Int, lastID: Int64?) in
            DeadLetterResolution(changed: changed, refused: examined - changed, lastID: lastID)
        }[0]
    }

    private static let record = Statement(String(sql: PackageResources.record_letters_sql))

    private static let countOpen = Statement(
        "SELECT reason, count(*) FROM siwa.dead_letters WHERE status = 'open' GROUP BY reason"
    )
}
