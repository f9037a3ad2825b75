import AccountStore
import AppleTokens
import Postgres
import StoreTestSupport

/// Tells histories to a real database, each telling about people of its own, and reads what they came to.
struct Ledger {
    /// One telling of one history: its people have this prefix.
    struct Telling {
        let prefix: String
        var remaining: [Fact]
    }

    static let start = WallTime(seconds: 1_790_000_000)

    static func time(_ minute: Int) -> WallTime {
        start + .seconds(60 * minute)
    }

    /// Tells all of them at once: batches hold facts of many tellings, and each telling is cut at random places.
    static func tell(
        _ tellings: [Telling],
        on connection: PostgresConnection,
        using generator: inout SeededGenerator
    ) async throws {
        var tellings = tellings
        while tellings.contains(where: { !$0.remaining.isEmpty }) {
            var batch: [ReceivedNotification] = []
            var before: [(Fact, String)] = []
            var after: [(Fact, String)] = []
            for index in tellings.indices {
                let count = min(Int.random(in: 0...4, using: &generator), tellings[index].remaining.count)
                for fact in tellings[index].remaining.prefix(count) {
                    if fact.isNotification {
                        batch.append(fact.notification(prefix: tellings[index].prefix, since: start))
                    } else if Bool.random(using: &generator) {
                        before.append((fact, tellings[index].prefix))
                    } else {
                        after.append((fact, tellings[index].prefix))
                    }
                }
                tellings[index].remaining.removeFirst(count)
            }
            let (whole, first, last) = (batch, before, after)
            try await connection.withSession { session throws(PostgresError) in
                for (fact, prefix) in first { try fact.tell(prefix: prefix, since: start, in: session) }
                if !whole.isEmpty { try record(whole, in: session) }
                for (fact, prefix) in last { try fact.tell(prefix: prefix, since: start, in: session) }
            }
        }
    }

    /// Records a batch, again when another writer changed a row meanwhile.
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
