import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport

/// Records histories in a real database. Each delivery of a history is about people of its own.
struct Ledger {
    /// The facts of one history in one order. The names of its people start with `prefix`.
    struct Delivery {
        let prefix: String
        var remaining: [Fact]
    }

    static let start = WallTime(seconds: 1_790_000_000)

    static func time(_ minute: Int) -> WallTime {
        start + .seconds(60 * minute)
    }

    /// Records all deliveries together: a batch has facts of many deliveries, and each delivery is divided at random places.
    static func record(
        _ deliveries: [Delivery],
        on connection: PostgresConnection,
        using generator: inout SeededGenerator
    ) async throws {
        var deliveries = deliveries
        while deliveries.contains(where: { !$0.remaining.isEmpty }) {
            var batch: [ReceivedNotification] = []
            var before: [(Fact, String)] = []
            var after: [(Fact, String)] = []
            for index in deliveries.indices {
                let count = min(Int.random(in: 0...4, using: &generator), deliveries[index].remaining.count)
                for fact in deliveries[index].remaining.prefix(count) {
                    if fact.isNotification {
                        batch.append(fact.notification(prefix: deliveries[index].prefix, since: start))
                    } else if Bool.random(using: &generator) {
                        before.append((fact, deliveries[index].prefix))
                    } else {
                        after.append((fact, deliveries[index].prefix))
                    }
                }
                deliveries[index].remaining.removeFirst(count)
            }
            let (whole, first, last) = (batch, before, after)
            try await connection.withSession { session throws(PostgresError) in
                for (fact, prefix) in first { try fact.record(prefix: prefix, since: start, in: session) }
                if !whole.isEmpty { try record(whole, in: session) }
                for (fact, prefix) in last { try fact.record(prefix: prefix, since: start, in: session) }
            }
        }
    }

    /// Records a batch, and repeats that after a serialization failure.
    private static func record(
        _ batch: [ReceivedNotification],
        in session: borrowing Session
    ) throws(PostgresError) {
        while true {
            do throws(PostgresError) {
                _ = try Notifications.record(batch, source: .endpoint, in: session)
                return
            } catch let error where error.sqlState == .serializationFailure {
                continue
            }
        }
    }
}
