import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Convergence of the same facts")
struct ConvergenceTests {
    /// How often each history is recorded, in different orders.
    static let deliveries = 4

    @Test("Any order, repetition and batching of facts ends in the state of the model.", arguments: 0..<8)
    func converges(part: Int) async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let seed = UInt64(part) &* 7_919 &+ 20_260_101
            var generator = SeededGenerator(seed: seed)
            var models: [String: (Model, [Fact])] = [:]
            for group in 0..<10 {
                var deliveries: [Ledger.Delivery] = []
                for index in 0..<26 {
                    let history = History(using: &generator)
                    let model = Model(history.facts)
                    for delivery in 0..<Self.deliveries {
                        let prefix = "\(group).\(index).\(delivery)/"
                        let facts = history.delivery(using: &generator)
                        deliveries.append(Ledger.Delivery(prefix: prefix, remaining: facts))
                        models[prefix] = (model, facts)
                    }
                }
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(script: Notifications.writerSettings)
                    try Notifications.ensurePartitions(from: Ledger.time(0), through: Ledger.time(10), in: session)
                }
                try await Ledger.record(deliveries, on: connection, using: &generator)
            }
            let observed = try await Observed.all(since: Ledger.start, on: connection)
            #expect(models.count == 10 * 26 * Self.deliveries)
            for (prefix, (model, facts)) in models {
                let differences = (observed[prefix] ?? Observed(since: Ledger.start)).differences(from: model)
                #expect(differences.isEmpty, "seed \(seed), delivery \(prefix): \(facts)")
            }
            let gaps = try await Self.historyGaps(on: connection)
            #expect(gaps.isEmpty, "seed \(seed), \(gaps.count) gaps: \(gaps.prefix(5))")
            await connection.close()
        }
    }

    /// Where the history of a facet names a notification twice, does not continue from its previous state, or does not end in
    /// the present one.
    private static func historyGaps(on connection: PostgresConnection) async throws -> [String] {
        try await connection.withSession { session throws(PostgresError) in
            let rows = try session.execute(
                Statement(
                    once: """
                        WITH facets AS (
                            SELECT *, CASE facet WHEN 'consent' THEN app_id END AS consent FROM siwa.account_history
                        ), steps AS (
                            SELECT *,
                                lag(to_state) OVER w AS previous,
                                row_number() OVER (PARTITION BY account_id, consent, facet ORDER BY change_id DESC) AS from_last
                            FROM facets
                            WINDOW w AS (PARTITION BY account_id, consent, facet ORDER BY change_id)
                        )
                        SELECT 'written twice: ' || jti FROM facets
                        GROUP BY jti, account_id, facet HAVING count(jti) > 1
                        UNION ALL
                        SELECT format('%s %s: from %s after %s', sub, facet, from_state, previous) FROM steps
                        WHERE from_state <> previous OR (previous IS NULL AND facet = 'email' AND from_state <> 'deliverable')
                        UNION ALL
                        SELECT format('%s: mail is %s, not %s', a.sub, e.now, s.to_state)
                        FROM siwa.accounts AS a
                        LEFT JOIN steps AS s ON s.account_id = a.account_id AND s.facet = 'email' AND s.from_last = 1
                        CROSS JOIN LATERAL siwa.email_state(
                            a.forwarding_disabled_at, a.forwarding_enabled_at, a.email_is_private
                        ) AS e (now)
                        WHERE a.deleted_at IS NULL AND e.now <> coalesce(s.to_state, 'deliverable')
                        """
                )
            )
            return try (0..<rows.count).map { row throws(PostgresError) in try rows.string(row, 0) }
        }
    }
}
