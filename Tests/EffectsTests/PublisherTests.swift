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
}
