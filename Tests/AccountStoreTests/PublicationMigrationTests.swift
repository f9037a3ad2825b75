import AccountStore
import AppleTokens
import Basics
import Postgres
import Schema
import StoreTestSupport
import Synchronization
import TestSupport
import Testing

@Suite("Migration to the change feed", .timeLimit(.minutes(10)))
struct PublicationMigrationTests {
    private static let rows = LongVariants.areWanted ? 1_000_000 : 20_000
    /// In usual runs, other tests use the machine too.
    private static let limit = Duration.seconds(LongVariants.areWanted ? 1 : 5)

    /// What the writers did.
    private final class Load: Sendable {
        let isDone = Atomic(false)
        let count = Atomic(0)
        let longest = Mutex(Duration.zero)

        func measure(_ work: () async throws -> Void) async throws {
            let start = ContinuousClock.now
            try await work()
            let duration = .now - start
            longest.withLock { $0 = max($0, duration) }
            count.wrappingAdd(1, ordering: .relaxed)
        }

        /// Waits for this number of further statements.
        func progress(_ further: Int) async {
            let goal = count.load(ordering: .relaxed) + further
            while count.load(ordering: .relaxed) < goal, !Task.isCancelled { await Task.yield() }
        }
    }

    @Test("With a long history and under load, it makes no writer wait for long, and old changes are not published.")
    func underLoad() async throws {
        try await TestDatabase.with { database in
            try await fill(database)
            let load = Load()
            try await withThrowingTaskGroup { group in
                for number in 0..<2 {
                    group.addTask { try await Self.signIn(database, "s\(number)", load) }
                    group.addTask { try await Self.ingest(database, "n\(number)", load) }
                }
                await load.progress(100)
                let connection = try await PostgresConnection.connect(database.settings)
                let last = "SELECT max(change_id) FROM siwa.account_changes"
                let before = try await connection.withSession { session throws(PostgresError) in
                    try session.execute(once: last).int64(0, 0)
                }
                #expect(before >= Self.rows)
                try await Migrator(Schema.migrations, schema: Schema.name).up(on: connection)
                await load.progress(100)
                load.isDone.store(true, ordering: .relaxed)
                try await group.waitForAll()
                let faults = try await connection.withSession { session throws(PostgresError) in
                    #expect(try Publication.publish(in: session)?.positions.lowerBound == 1)
                    return try session.execute(
                        once: """
                            SELECT concat_ws(
                                ', ', count(*) FILTER (WHERE (c.xid IS NULL) <> (l.position IS NULL)) || ' wrong',
                                count(*) FILTER (WHERE l.change_id <= $1) || ' old', (count(l.position) > 50)::text
                            )
                            FROM siwa.account_changes AS c
                            LEFT JOIN siwa.change_log AS l USING (change_id)
                            """,
                        before
                    ).string(0, 0)
                }
                #expect(faults == "0 wrong, 0 old, true")
                await connection.close()
            }
            let longest = load.longest.withLock { $0 }
            print(
                "migration of \(Self.rows) changes: the longest of \(load.count.load(ordering: .relaxed)) writes took \(longest)"
            )
            #expect(longest < Self.limit)
        }
    }

    // MARK: - Private parts

    /// The schema before the feed, with a history.
    private func fill(_ database: TestDatabase) async throws {
        let connection = try await PostgresConnection.connect(database.settings)
        try await Migrator(Array(Schema.migrations.prefix(7)), schema: Schema.name).up(on: connection)
        try await connection.withSession(deadline: .seconds(300)) { session throws(PostgresError) in
            try Clients.add(DatabaseTemplate.siwaAudiences, in: session)
            try session.execute(
                script: """
                    SET statement_timeout = 0;
                    INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
                    SELECT 1, 'x', 'consent', 'authorized', 'revoked', now() FROM generate_series(1, \(Self.rows))
                    """
            )
        }
        await connection.close()
    }

    private static func signIn(_ database: TestDatabase, _ name: String, _ load: Load) async throws {
        let connection = try await PostgresConnection.connect(database.settings)
        var number = 0
        while !load.isDone.load(ordering: .relaxed) {
            number += 1
            let sub = Subject("\(name) \(number)")
            try await load.measure {
                try await connection.withSession { session throws(PostgresError) in
                    _ = try Applications.recordSignIn(
                        client: ClientID("com.example.one"),
                        subject: sub,
                        signedInAt: Store.now,
                        in: session
                    )
                }
            }
        }
        await connection.close()
    }

    private static func ingest(_ database: TestDatabase, _ name: String, _ load: Load) async throws {
        let connection = try await Store.writer(database)
        var number = 0
        while !load.isDone.load(ordering: .relaxed) {
            number += 1
            let id = "\(name) \(number)"
            let batch = [ReceivedNotification.sample("consent-revoked", sub: id, at: Store.now, id: id)]
            try await load.measure {
                try await connection.withSession { session throws(PostgresError) in
                    _ = try Notifications.record(batch, source: .endpoint, in: session)
                }
            }
        }
        await connection.close()
    }
}
