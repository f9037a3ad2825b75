import Basics
import Postgres
import StoreTestSupport
import Telemetry
import TestSupport
import Testing

@testable import Effects

@Suite("The publisher of a daemon", .timeLimit(.minutes(2)))
struct PublisherTests {
    @Test("A round that takes longer than its limit gets twice the time, until it succeeds.", arguments: [1, 3])
    func longRound(publishers: Int) async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    script: """
                        CREATE FUNCTION public.sleep() RETURNS trigger LANGUAGE plpgsql AS $$
                        BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
                        CREATE TRIGGER slow AFTER INSERT ON siwa.change_log
                            FOR EACH STATEMENT EXECUTE FUNCTION public.sleep();
                        SELECT siwa.record_sign_in('com.example.one', 'a', signed_in_at => now())
                        """
                )
            }
            let pool = ConnectionPool(database.settings, maximum: publishers)
            let all = (0..<publishers).map { _ in
                Publisher(
                    pool: pool,
                    changes: WakeupEvent(),
                    metrics: PublicationMetrics(registry: MetricsRegistry()),
                    log: Log(label: "test", level: .error, format: .text) { _ in },
                    usualRound: .milliseconds(100)
                )
            }
            async let running: Void = withDiscardingTaskGroup { group in
                for publisher in all { group.addTask { await publisher.run() } }
            }
            var position: Int64 = 0
            while position == 0, !Task.isCancelled {
                position = try await connection.withSession { session throws(PostgresError) in
                    try session.execute(once: "SELECT position FROM siwa.publication").int64(0, 0)
                }
            }
            for publisher in all { publisher.finish() }
            await running
            await pool.close()
            await connection.close()
        }
    }

    @Test("A change whose round another session holds up is published soon after that session has ended.")
    func heldUp() async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            func texts(_ sql: String) async throws -> [String] {
                try await connection.withSession { session throws(PostgresError) in try session.texts(sql) }
            }
            let pool = ConnectionPool(database.settings, maximum: 1)
            let changes = WakeupEvent()
            let publisher = Publisher(
                pool: pool,
                changes: changes,
                metrics: PublicationMetrics(registry: MetricsRegistry()),
                log: Log(label: "test", level: .error, format: .text) { _ in },
                lastRounds: 1_000
            )
            async let running: Void = publisher.run()
            /// Stores a change, and returns after a round that finds the publication locked.
            func hold(_ person: String, _ wake: () -> Void) async throws {
                _ = try await texts("SELECT count(siwa.record_sign_in('com.example.one', '\(person)'))::text")
                let stored = try await texts("SELECT clock_timestamp()::text")[0]
                wake()
                let rounds = """
                    SELECT pid::text FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle'
                        AND query ~ 'siwa.publish_changes|siwa.publication_age' AND query_start > '\(stored)'
                    """
                while try await texts(rounds).isEmpty { await Task.yield() }
            }
            let lock = "SET LOCAL lock_timeout = 0; SELECT FROM siwa.publication FOR UPDATE"
            var shortest = Duration.seconds(60)
            // The machine is busy with other tests, so only the fastest tells how long the publisher waits.
            for number in 1...3 {
                let released = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: lock)
                } _: {
                    try await hold("p\(number)", changes.signal)
                    return try await texts("SELECT clock_timestamp()::text")[0]
                }
                let delays = """
                    SELECT (extract(epoch FROM published_at - timestamptz '\(released)') * 1000)::bigint::text
                    FROM siwa.changes WHERE position = \(number)
                    """
                var delay: Int64?
                while delay == nil { delay = try await texts(delays).first.flatMap { Int64($0) } }
                shortest = min(shortest, .milliseconds(delay ?? 0))
            }
            #expect(shortest < .milliseconds(500))
            // The last round too.
            try await database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: lock)
            } _: {
                try await hold("last", publisher.finish)
            }
            await running
            #expect(try await texts("SELECT count(*)::text FROM siwa.changes") == ["4"])
            await pool.close()
            await connection.close()
        }
    }
}
