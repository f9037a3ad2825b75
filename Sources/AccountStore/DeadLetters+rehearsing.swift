public import Postgres

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
    public static func precedents(
        _ filter: DeadLetterFilter,
        after: Int64,
        through: Int64,
        limit: Int,
        in session: borrowing Session
    ) throws(PostgresError) -> [Int64] {
        var next = DeadLetterConditions(filter, status: .open)
        next.add("id > ?") { $0.append(after) }
        next.add("id <= ?") { $0.append(through) }
        let tail = next.parameter(in: "ORDER BY id LIMIT ?") { $0.append(Int64(clamping: limit)) }
        let nextOnes = Statement(
            once: """
                SELECT DISTINCT sub
                FROM (SELECT sub FROM siwa.dead_letters WHERE \(next.sql) \(tail)) AS n
                WHERE sub IS NOT NULL
                """
        )
        let subjects = try session.execute(nextOnes, next.binds).map { (rows, row) throws(PostgresError) in
            try rows.string(row, 0)
        }
        guard !subjects.isEmpty else { return [] }

        var theirs = DeadLetterConditions(filter, status: .open)
        theirs.add("sub = ANY (?)") { $0.append(array: subjects) }
        // Few are of one person. Bounded by the id here, not there, they are found by nothing but their index.
        let statement = Statement(once: "SELECT id FROM siwa.dead_letters WHERE \(theirs.sql)")
        return try session.execute(statement, theirs.binds)
            .map { (rows, row) throws(PostgresError) in try rows.int64(row, 0) }
            .filter { $0 <= after }
            .sorted()
    }
}
