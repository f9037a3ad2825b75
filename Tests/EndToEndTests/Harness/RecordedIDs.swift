import Postgres

/// The number of rows for each `jti` in the database.
struct RecordedIDs {
    /// In `siwa.notifications`.
    private(set) var notifications: [String: Int] = [:]
    /// In open dead letters.
    private(set) var deadLetters: [String: Int] = [:]
    /// Changes with more than one row in the history.
    private(set) var repeatedChanges: [String] = []

    static func read(on connection: PostgresConnection) async throws -> RecordedIDs {
        try await connection.withSession { session throws(PostgresError) in
            var ids = RecordedIDs()
            ids.notifications = try counts("SELECT jti FROM siwa.notifications", in: session)
            ids.deadLetters = try counts(
                "SELECT jti FROM siwa.dead_letters WHERE status = 'open' AND jti IS NOT NULL",
                in: session
            )
            ids.repeatedChanges = try counts(
                "SELECT jti FROM siwa.account_history WHERE jti IS NOT NULL"
                    + " GROUP BY jti, team_id, sub, app_id, facet HAVING count(*) > 1",
                in: session
            ).keys.sorted()
            return ids
        }
    }

    /// The errors: an acknowledged notification that is not stored exactly once, one that is stored twice, one that was
    /// refused and stored, one that was never sent.
    func findings(after outcome: LoadRun.Outcome) -> [String] {
        var findings = repeatedChanges.map { "\($0): one change was written twice" }
        func count(_ id: String) -> Int { notifications[id, default: 0] + deadLetters[id, default: 0] }
        for id in outcome.acknowledged where count(id) != 1 {
            findings.append("\(id): acknowledged, and \(count(id)) times in the database")
        }
        for id in outcome.sent.subtracting(outcome.acknowledged) where count(id) > 1 {
            findings.append("\(id): \(count(id)) times in the database")
        }
        for (id, status) in outcome.refused where count(id) > 0 {
            findings.append("\(id): refused with \(status), and in the database")
        }
        for id in Set(notifications.keys).union(deadLetters.keys).subtracting(outcome.sent) {
            findings.append("\(id): in the database, and never sent")
        }
        return findings
    }

    private static func counts(_ sql: String, in session: borrowing Session) throws(PostgresError) -> [String: Int] {
        let rows = try session.execute(Statement(once: sql))
        var counts: [String: Int] = [:]
        counts.reserveCapacity(rows.count)
        for row in 0..<rows.count { counts[try rows.string(row, 0), default: 0] += 1 }
        return counts
    }
}
