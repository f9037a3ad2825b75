import Postgres
import Synchronization
import TestSupport
import Testing

@Suite("Migrator")
struct MigratorTests {
    private static let migrations = [
        Migration(number: 1, name: "first", sql: "CREATE TABLE app.a (n integer); CREATE TABLE app.b (n integer)"),
        Migration(number: 2, name: "second", sql: "INSERT INTO app.a VALUES (1)"),
        Migration(number: 3, name: "third", sql: "ALTER TABLE app.a ADD COLUMN t text"),
    ]

    private static func migrator(_ migrations: [Migration] = migrations) throws -> Migrator {
        try Migrator(migrations, schema: "app")
    }

    @Test("Migrations are applied in order, once, and recorded.")
    func up() async throws {
        try await withConnection { connection in
            let migrator = try Self.migrator()
            #expect(try await migrator.status(on: connection).map(\.state) == [.pending, .pending, .pending])
            #expect(try await migrator.up(on: connection) == Self.migrations)
            #expect(try await migrator.up(on: connection) == [])
            let status = try await migrator.status(on: connection)
            #expect(status.map(\.state) == [.applied, .applied, .applied])
            #expect(status.map(\.name) == ["first", "second", "third"])
            #expect(status.allSatisfy { $0.appliedAt != nil })
            #expect(try await connection.integer("SELECT count(*) FROM app.a") == 1)
        }
    }

    @Test("A migration that is added later is applied later.")
    func later() async throws {
        try await withConnection { connection in
            try await Self.migrator(Array(Self.migrations.prefix(2))).up(on: connection)
            #expect(try await Self.migrator().up(on: connection) == [Self.migrations[2]])
        }
    }

    @Test("Concurrent migrators apply each migration once.")
    func concurrent() async throws {
        try await TestDatabase.with { database in
            let migrator = try Self.migrator()
            let applied = try await withThrowingTaskGroup(of: [Migration].self, returning: [Migration].self) { group in
                for _ in 0..<6 {
                    group.addTask { try await migrator.up(on: .connect(database.settings)) }
                }
                return try await group.reduce(into: []) { $0 += $1 }
            }
            #expect(applied.map(\.number).sorted() == [1, 2, 3])
        }
    }

    @Test("A migration whose text changed after it was applied is refused.")
    func changed() async throws {
        try await withConnection { connection in
            try await Self.migrator(Array(Self.migrations.prefix(2))).up(on: connection)
            var changed = Self.migrations
            changed[0] = Migration(number: 1, name: "first", sql: "SELECT 1")
            let migrator = try Self.migrator(changed)
            #expect(try await migrator.status(on: connection).map(\.state) == [.changed, .applied, .pending])
            let error = await postgresError { try await migrator.up(on: connection) }
            #expect(error?.code == .migration)
            #expect(error?.description.contains("migration 1 (first)") == true)
            #expect(try await migrator.status(on: connection)[2].state == .pending)
        }
    }

    @Test("A database that a later version has migrated is refused.")
    func unknown() async throws {
        try await withConnection { connection in
            try await Self.migrator().up(on: connection)
            let older = try Self.migrator(Array(Self.migrations.prefix(2)))
            #expect(try await older.status(on: connection).map(\.state) == [.applied, .applied, .unknown])
            let error = await postgresError { try await older.up(on: connection) }
            #expect(error?.code == .migration)
            #expect(error?.description.contains("migration 3 (third)") == true)
        }
    }

    @Test("A failed migration is rolled back and named, and earlier migrations stay applied.")
    func failing() async throws {
        try await withConnection { connection in
            var migrations = Self.migrations
            migrations[1] = Migration(number: 2, name: "broken", sql: "DROP TABLE app.b; SELECT * FROM nothing")
            let migrator = try Self.migrator(migrations)
            let error = await postgresError { try await migrator.up(on: connection) }
            #expect(error?.code == .server)
            #expect(error?.sqlState == .undefinedTable)
            #expect(error?.migration == "2 (broken)")
            #expect(error?.description.contains("migration 2 (broken)") == true)
            #expect(try await migrator.status(on: connection).map(\.state) == [.applied, .pending, .pending])
            #expect(try await connection.integer("SELECT count(*) FROM app.b") == 0)
        }
    }

    @Test("Each migration is reported after its commit, also if a later one fails.")
    func reported() async throws {
        try await withConnection { connection in
            var migrations = Self.migrations
            migrations[2] = Migration(number: 3, name: "broken", sql: "SELECT * FROM nothing")
            let migrator = try Self.migrator(migrations)
            let (numbers, reported) = AsyncStream<Int>.makeStream()
            let error = await postgresError {
                try await migrator.up(on: connection, onApplied: { reported.yield($0.number) })
            }
            reported.finish()
            #expect(error?.migration == "3 (broken)")
            var applied: [Int] = []
            for await number in numbers { applied.append(number) }
            #expect(applied == [1, 2])
        }
    }

    @Test("A migration that is the victim of a deadlock is retried.")
    func deadlock() async throws {
        try await withConnection { connection in
            // A rollback does not set a sequence back.
            try await connection.script("CREATE SEQUENCE public.attempts")
            let migration = Migration(
                number: 1,
                name: "victim",
                sql: """
                    DO $$ BEGIN
                        IF nextval('public.attempts') = 1 THEN
                            RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
                        END IF;
                    END $$
                    """
            )
            #expect(try await Self.migrator([migration]).up(on: connection) == [migration])
            #expect(try await connection.integer("SELECT last_value FROM public.attempts") == 2)
        }
    }

    @Test("A migration that fails for the state of the server is not the migration of another version.")
    func serverFault() async throws {
        try await withConnection { connection in
            let migrator = try Self.migrator([
                Migration(
                    number: 1,
                    name: "large",
                    sql: "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$"
                )
            ])
            let error = await postgresError { try await migrator.up(on: connection) }
            #expect(error?.code == .server)
            #expect(error?.sqlState?.rawValue == "53100")
            #expect(error?.description.hasPrefix("migration 1 (large) failed: ") == true)
            #expect(try await migrator.status(on: connection).map(\.state) == [.pending])
        }
    }

    @Test("A migration that commits by itself is refused.")
    func ownCommit() async throws {
        try await withConnection { connection async throws in
            let migrator = try Self.migrator([
                Migration(number: 1, name: "committing", sql: "SELECT 1; COMMIT; SELECT 2")
            ])
            let error = await postgresError { try await migrator.up(on: connection) }
            #expect(error?.code == .usage)
        }
    }

    @Test("Numbers with gaps, repeated or out of order are refused.", arguments: [[2], [1, 3], [1, 1], [2, 1]])
    func numbers(numbers: [Int]) {
        #expect(throws: PostgresError.self) {
            try Migrator(numbers.map { Migration(number: $0, name: "x", sql: "") }, schema: "app")
        }
    }

    @Test("A migration that waits for a lock delays no query for more than three seconds, and is retried.")
    func lockWait() async throws {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await Self.migrator(Array(Self.migrations.prefix(2))).up(on: connection)
            let (waits, reported) = AsyncStream<Migrator.LockWait>.makeStream()
            // A transaction that has read the table and does not end: `third` wants to alter that table.
            let applied = try await database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT FROM app.a")
            } _: {
                let migrating = Task {
                    try await Self.migrator().up(on: .connect(database.settings)) { reported.yield($0) }
                }
                let application = try await PostgresConnection.connect(database.settings)
                var longest = Duration.zero
                var attempts = 0
                let watching = Task {
                    for await wait in waits where wait.attempts == 2 { break }
                }
                let isDone = Atomic(false)
                async let done: Void = {
                    await watching.value; isDone.store(true, ordering: .releasing)
                }()
                while !isDone.load(ordering: .acquiring) {
                    let began = ContinuousClock.now
                    _ = try await application.integer("SELECT count(*) FROM app.a")
                    longest = max(longest, began.duration(to: .now))
                    attempts += 1
                }
                await done
                #expect(longest < .seconds(3))
                #expect(longest > .milliseconds(500), "at least one query waited behind the migration")
                await application.close()
                return migrating
            }
            #expect(try await applied.value == [Self.migrations[2]])
            await connection.close()
        }
    }

    @Test("A migrator that waits for another one reports its process, and then applies the migrations.")
    func otherMigrator() async throws {
        try await TestDatabase.with { database in
            let (waits, reported) = AsyncStream<Migrator.LockWait>.makeStream()
            let (processes, found) = AsyncStream<Int32>.makeStream()
            let applied = try await database.withOpenTransaction { session throws(PostgresError) in
                _ = try session.execute(
                    once: "SELECT pg_advisory_xact_lock(hashtextextended('schema_migrations of \"app\"', 0))"
                )
                found.yield(try session.execute(once: "SELECT pg_backend_pid()").int32(0, 0))
            } _: {
                let migrating = Task {
                    try await Self.migrator().up(on: .connect(database.settings)) { reported.yield($0) }
                }
                let wait = await waits.first(where: { _ in true })
                let process = await processes.first(where: { _ in true })
                #expect(wait?.holder == .migrator(process: process))
                #expect(wait?.attempts == 1)
                return migrating
            }
            #expect(try await applied.value == Self.migrations)
        }
    }

    @Test("A migrator that another one holds up for the whole deadline fails, and can be called again.")
    func endlessMigrator() async throws {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let error = try await database.withOpenTransaction { session throws(PostgresError) in
                _ = try session.execute(
                    once: "SELECT pg_advisory_xact_lock(hashtextextended('schema_migrations of \"app\"', 0))"
                )
            } _: {
                await postgresError { try await Self.migrator().up(on: connection, deadline: .seconds(3)) }
            }
            #expect(error?.code == .timedOut)
            #expect(try await Self.migrator().up(on: connection) == Self.migrations)
            await connection.close()
        }
    }

    @Test("A migration that never gets its lock fails with its name and is rolled back.")
    func noLock() async throws {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await Self.migrator(Array(Self.migrations.prefix(2))).up(on: connection)
            let error = try await database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT FROM app.a")
            } _: {
                await postgresError { try await Self.migrator().up(on: connection, patience: .zero) }
            }
            #expect(error?.sqlState == .lockNotAvailable)
            #expect(error?.description.contains("migration 3 (third)") == true)
            #expect(try await Self.migrator().status(on: connection).last?.state == .pending)
            await connection.close()
        }
    }

    @Test("The script for psql limits lock waits and sets the search path.")
    func scriptSettings() throws {
        let script = try Self.migrator().script(checksum: { _ in "" })
        let transactions = script.split(separator: "BEGIN;\n").dropFirst()
        #expect(transactions.count == 4)
        for transaction in transactions {
            #expect(transaction.hasPrefix("SET LOCAL search_path = pg_catalog, pg_temp;"))
            #expect(transaction.contains("SET LOCAL lock_timeout = '2s'"))
        }
    }

    @Test("An empty list of migrations applies none.")
    func none() async throws {
        try await withConnection { connection async throws in
            #expect(try await Self.migrator([]).up(on: connection) == [])
        }
    }
}
