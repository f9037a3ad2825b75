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
            await connection.close()
        }
    }
}
