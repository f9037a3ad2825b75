import AccountStore
import Glibc
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport
import Testing

/// Writers of random transactions, publishers of which one is killed again and again, and a reader.
@Suite("Race of publication", .timeLimit(.minutes(30)))
struct PublicationRaceTests {
    private static let rows = LongVariants.areWanted ? 100_000 : 2_000
    /// The least number of publishers that are killed.
    private static let kills = LongVariants.areWanted ? 50 : 3

    private final class Progress: Sendable {
        let inserted = Atomic(0)
        let committed = Atomic(0)
        /// The number of publishers that were killed.
        let killed = Atomic(0)
        let isDone = Atomic(false)

        /// Whether the writers may end.
        var isComplete: Bool {
            inserted.load(ordering: .relaxed) >= PublicationRaceTests.rows
                && killed.load(ordering: .relaxed) >= PublicationRaceTests.kills
        }
    }

    @Test("Whatever transactions and publishers do, each committed change is published once, in a prefix at any time.")
    func race() async throws {
        let seed = getenv("SIWAD_SEED").flatMap { UInt64(String(cString: $0)) } ?? .random(in: 0...UInt64.max)
        try await TestDatabase.with(.siwa) { database in
            let progress = Progress()
            try await withThrowingTaskGroup { others in
                for _ in 0..<2 { others.addTask { try await Self.publish(database, until: progress) } }
                others.addTask { try await Self.kill(database, until: progress) }
                others.addTask { try await Self.read(database, until: progress) }
                try await withThrowingTaskGroup { writers in
                    for number in 0..<6 {
                        let random = SeededGenerator(seed: seed &+ UInt64(number))
                        let name = "\(database.name)_\(number)"
                        writers.addTask { try await Self.write(database, random, preparing: name, progress) }
                    }
                    try await writers.waitForAll()
                }
                progress.isDone.store(true, ordering: .relaxed)
                try await others.waitForAll()
            }
            let connection = try await PostgresConnection.connect(database.settings)
            let faults = try await connection.withSession { session throws(PostgresError) in
                while try Publication.publish(in: session) != nil {}
                return try session.execute(
                    once: """
                        SELECT concat_ws(
                            ', ', count(*) FILTER (WHERE l.change_id IS NULL) || ' missing',
                            count(*) FILTER (WHERE c.change_id IS NULL) || ' invented',
                            max(l.position) - count(l.position) || ' gaps', (count(c.change_id) = $1)::text
                        )
                        FROM siwa.account_changes AS c
                        FULL JOIN siwa.change_log AS l USING (change_id)
                        """,
                    progress.committed.load(ordering: .relaxed)
                ).string(0, 0)
            }
            await connection.close()
            #expect(faults == "0 missing, 0 invented, 0 gaps, true", "seed \(seed)")
            #expect(progress.killed.load(ordering: .relaxed) >= Self.kills)
        }
    }

    private static func write(
        _ database: TestDatabase,
        _ random: SeededGenerator,
        preparing name: String,
        _ progress: Progress
    ) async throws {
        var random = random
        let connection = try await PostgresConnection.connect(database.settings)
        while !progress.isComplete {
            let transaction = RandomTransaction(using: &random, prepared: name) { _ in insertion }
            try await connection.withSession { session throws(PostgresError) in
                for statement in transaction.statements { try session.execute(script: statement) }
            }
            progress.inserted.wrappingAdd(transaction.count, ordering: .relaxed)
            progress.committed.wrappingAdd(transaction.kept.count, ordering: .relaxed)
        }
        await connection.close()
    }

    private static let insertion = """
        INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
        VALUES (1, 'x', 'consent', 'authorized', 'revoked', now())
        """

    private static func publish(_ database: TestDatabase, until progress: Progress) async throws {
        let pool = database.pool(maximum: 1)
        while !progress.isDone.load(ordering: .relaxed) {
            do {
                _ = try await pool.withSession(Publication.publish)
            } catch let error where error.isConnectionError {
                // Killed.
            }
        }
        await pool.close()
    }

    /// Ends a publisher at a random point of its work.
    private static func kill(_ database: TestDatabase, until progress: Progress) async throws {
        let connection = try await PostgresConnection.connect(database.settings)
        while !progress.isDone.load(ordering: .relaxed) {
            let killed = try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "SELECT pg_sleep(random() * 0.1)")
                return try session.execute(
                    once: """
                        SELECT count(*) FILTER (WHERE pg_terminate_backend(p.pid))
                        FROM (
                            SELECT pid FROM pg_stat_activity
                            WHERE datname = current_database() AND query LIKE '%FROM siwa.publish_changes()%'
                                AND state = 'active' AND pid <> pg_backend_pid()
                            LIMIT 1
                        ) AS p
                        """
                ).int64(0, 0)
            }
            progress.killed.wrappingAdd(Int(killed), ordering: .relaxed)
        }
        await connection.close()
    }

    /// Reads as a consumer does, after its last position: what it sees must begin with the next one and have no gap.
    private static func read(_ database: TestDatabase, until progress: Progress) async throws {
        let connection = try await PostgresConnection.connect(database.settings)
        var last: Int64 = 0
        while !progress.isDone.load(ordering: .relaxed) {
            let position = last
            let positions = try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    Statement("SELECT position FROM siwa.change_log WHERE position > $1 ORDER BY position LIMIT 100"),
                    position
                ).decode { (position: Int64) in position }
            }
            #expect(positions == Array((last + 1)..<(last + 1 + Int64(positions.count))))
            last = positions.last ?? last
        }
        #expect(last > 0)
        await connection.close()
    }
}
