package import Postgres

/// How a batch of letters was discarded or reopened.
package struct DeadLetterResolution: Sendable, Equatable {
    /// How many letters were changed.
    package let changed: Int
    /// How many had to stay as they were.
    package let refused: Int
    /// The last id that was looked at; nil: none was left.
    package let lastID: Int64?
}

extension DeadLetters {
    /// Discards the next open letters that match, by their ids: they stay, with who and why.
    ///
    /// - Parameters:
    ///   - after: the last id that was looked at.
    ///   - through: the last id of the run.
    package static func discard(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        by operatorName: String,
        note: String,
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterResolution {
        let change = "status = 'discarded', resolved_at = now(), resolved_by = ?, note = ?"
        return try resolve(filter, .open, "true", change, after...through, limit, [operatorName, note], in: session)
    }

    /// Opens the next discarded letters that match, by their ids, once more. A letter whose token came again and has an
    /// open letter stays discarded.
    ///
    /// - Parameters:
    ///   - after: the last id that was looked at.
    ///   - through: the last id of the run.
    package static func reopen(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        note: String,
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterResolution {
        // Of several discarded letters with one token, the first is opened.
        let isAlone = """
            row_number() OVER (PARTITION BY token_digest ORDER BY id) = 1
            AND NOT EXISTS (
                SELECT FROM siwa.dead_letters AS o WHERE o.token_digest = next.token_digest AND o.status = 'open'
            )
            """
        let change = "status = 'open', resolved_at = NULL, resolved_by = NULL, note = ?"
        return try resolve(filter, .discarded, isAlone, change, after...through, limit, [note], in: session)
    }

    /// Deletes letters without a verified signature that `operatorName` discarded, but for the latest.
    package static func deleteUnverified(
        discardedBy operatorName: String,
        sparing count: Int,
        in session: borrowing Session
    ) throws(PostgresError) {
        let binds = Binds {
            $0.append(operatorName)
            $0.append(Int64(clamping: count))
        }
        _ = try session.execute(deleteUnverified, binds)
    }

    private static let deleteUnverified = Statement(
        once: """
            WITH discarded AS MATERIALIZED (
                SELECT id FROM siwa.dead_letters
                WHERE status = 'discarded' AND reason = 'keys-unavailable' AND verified_kid IS NULL AND resolved_by = $1
            )
            DELETE FROM siwa.dead_letters
            WHERE id = ANY (ARRAY(SELECT id FROM discarded ORDER BY id DESC OFFSET $2))
            """
    )

    /// Changes the next letters that match.
    ///
    /// - Parameters:
    ///   - condition: whether a letter of `next` may be changed.
    ///   - change: what is set, each value written `?`.
    ///   - ids: after the lower one, through the upper one.
    private static func resolve(
        _ filter: DeadLetterFilter,
        _ status: DeadLetterStatus,
        _ condition: String,
        _ change: String,
        _ ids: ClosedRange<Int64>,
        _ limit: Int,
        _ values: [String],
        in session: borrowing Session
    ) throws(PostgresError) -> DeadLetterResolution {
        var conditions = DeadLetterConditions(filter, status: status)
        conditions.add("id > ?") { $0.append(ids.lowerBound) }
        conditions.add("id <= ?") { $0.append(ids.upperBound) }
        let tail = conditions.parameter(in: "ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED") {
            $0.append(Int64(clamping: limit))
        }
        var set = ""
        var values = values[...]
        for character in change {
            guard character == "?" else {
                set.append(character)
                continue
            }
            let value = values.popFirst()
            set += conditions.parameter(in: "?") { $0.append(value) }
        }
        let statement = Statement(
            once: """
                WITH next AS MATERIALIZED (
                    SELECT id, token_digest FROM siwa.dead_letters WHERE \(conditions.sql) \(tail)
                ),
                changed AS (
                    UPDATE siwa.dead_letters SET \(set)
                    WHERE id = ANY (ARRAY(SELECT id FROM (SELECT id, \(condition) AS fits FROM next) AS n WHERE fits))
                    RETURNING id
                )
                SELECT (SELECT count(*) FROM changed), count(*), max(id) FROM next
                """
        )
        let rows = try session.execute(statement, conditions.binds)
        let changed = Int(try rows.int64(0, 0))
        return DeadLetterResolution(
            changed: changed,
            refused: Int(try rows.int64(0, 1)) - changed,
            lastID: try rows.optionalInt64(0, 2)
        )
    }
}
