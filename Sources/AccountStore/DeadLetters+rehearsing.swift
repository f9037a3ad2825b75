package import Postgres

extension DeadLetters {
    /// The letters of a run that have had their turn and are about the same people as those whose turn is next: what
    /// became of the former decides what becomes of the latter.
    ///
    /// A letter that was never verified tells of nobody, and so is neither found nor looked for.
    ///
    /// - Parameters:
    ///   - after: the last id that had its turn.
    ///   - through: the last id of the run.
    ///   - limit: so many letters are next.
    /// - Returns: their ids in ascending order.
    package static func precedents(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        in transaction: borrowing Session
    ) throws(PostgresError) -> [Int64] {
        let next = DeadLetterConditions(filter, status: .open)
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
        let subjects = try transaction.execute(nextOnes, next.binds).map { (rows, row) throws(PostgresError) in
            try rows.string(row, 0)
        }

        var theirs = DeadLetterConditions(filter, status: .open, isFurtherNarrowed: true)
        theirs.add("sub = ANY (?)") { $0.append(array: subjects) }
        try transaction.execute(script: planningBySubject)
        // Few are of one person. Bounded by the id here, not there, they are found by nothing but their index.
        let statement = Statement(once: "SELECT id FROM siwa.dead_letters WHERE \(theirs.sql)")
        let ids = try transaction.execute(statement, theirs.binds).map { (rows, row) throws(PostgresError) in
            try rows.int64(row, 0)
        }
        try transaction.execute(script: planningAsBefore)
        return ids.filter { $0 <= after }.sorted()
    }
}
