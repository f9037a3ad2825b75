import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Any order, duplication and batching of the same facts")
struct ConvergenceTests {
    /// Of each history.
    static let tellings = 4

    @Test("ends in the state that living through the facts in the order of their times ends in", arguments: 0..<8)
    func converges(part: Int) async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let seed = UInt64(part) &* 7_919 &+ 20_260_101
            var generator = SeededGenerator(seed: seed)
            var models: [String: (Model, [Fact])] = [:]
            for group in 0..<10 {
                var tellings: [Ledger.Telling] = []
                for index in 0..<26 {
                    let history = History(using: &generator)
                    let model = Model(history.facts)
                    for telling in 0..<Self.tellings {
                        let prefix = "\(group).\(index).\(telling)/"
                        let facts = history.telling(using: &generator)
                        tellings.append(Ledger.Telling(prefix: prefix, remaining: facts))
                        models[prefix] = (model, facts)
                    }
                }
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(script: Notifications.writerSettings)
                    try Notifications.ensurePartitions(from: Ledger.time(0), through: Ledger.time(10), in: session)
                }
                try await Ledger.tell(tellings, on: connection, using: &generator)
            }
            let observed = try await Observed.all(since: Ledger.start, on: connection)
            #expect(models.count == 10 * 26 * Self.tellings)
            for (prefix, (model, facts)) in models {
                let differences = (observed[prefix] ?? Observed(since: Ledger.start)).differences(from: model)
                #expect(differences.isEmpty, "seed \(seed), telling \(prefix): \(facts)")
            }
            await connection.close()
        }
    }
}
