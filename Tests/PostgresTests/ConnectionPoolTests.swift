import Postgres
import TestSupport
import Testing

@Suite("Connection pool")
struct ConnectionPoolTests {
    @Test("A pool opens as many connections as allowed, and no more.")
    func bound() async throws {
        try await TestDatabase.with { database in
            let pool = database.pool(maximum: 3)
            let processes = try await withThrowingTaskGroup(of: String.self, returning: Set<String>.self) { group in
                for _ in 0..<30 {
                    group.addTask { try await pool.text("SELECT pg_backend_pid() || pg_sleep(0.005)::text") }
                }
                return try await group.reduce(into: []) { $0.insert($1) }
            }
            #expect(processes.count == 3)
            await pool.close()
        }
    }

    @Test("A caller that waits too long for a connection gets an error, and the next use succeeds.")
    func acquireTimeout() async throws {
        try await TestDatabase.with { database in
            let pool = ConnectionPool(database.settings, maximum: 1, acquireTimeout: .milliseconds(50))
            let holder = try await holdConnection(of: pool, database)
            let error = await postgresError { try await pool.text("SELECT 'x'") }
            #expect(error?.code == .timedOut)
            try await holder.release()
            #expect(try await pool.text("SELECT 'x'") == "x")
            await pool.close()
        }
    }

    @Test("withSessionIfFree returns nil while all connections are in use.")
    func ifFree() async throws {
        try await TestDatabase.with { database in
            let pool = ConnectionPool(database.settings, maximum: 1, acquireTimeout: .seconds(600))
            func ask() async throws -> String? {
                try await pool.withSessionIfFree { session throws(PostgresError) in
                    try session.execute(Statement(once: "SELECT 'x'")).string(0, 0)
                }
            }
            #expect(try await ask() == "x")
            let holder = try await holdConnection(of: pool, database)
            #expect(try await ask() == nil)
            try await holder.release()
            #expect(try await ask() == "x")
            await pool.close()
        }
    }

    @Test("A pool hears notifications, also between two waits, and gives the connection to another caller immediately.")
    func notifications() async throws {
        try await TestDatabase.with { database in
            let pool = ConnectionPool(database.settings, maximum: 1, acquireTimeout: .seconds(600))
            let sender = try await PostgresConnection.connect(database.settings)
            func heard(within time: Duration) async throws -> [String] {
                try await pool.waitForNotifications(of: ["one", "other"], atMost: time)
                    .map { "\($0.channel) \($0.payload)" }
            }
            #expect(try await heard(within: .zero) == [])
            try await sender.script("NOTIFY one, 'x'; NOTIFY third, 'y'")
            #expect(try await pool.text("SELECT 'between'") == "between")
            #expect(try await heard(within: .seconds(600)) == ["one x"])
            // Other callers end the wait, whether it has begun or not.
            try await withThrowingTaskGroup(of: Void.self) { group in
                group.addTask {
                    let found = try await heard(within: .seconds(600))
                    #expect(found == [])
                }
                group.addTask {
                    while !Task.isCancelled { _ = try await pool.text("SELECT 1::text") }
                }
                try await group.next()
                group.cancelAll()
            }
            await sender.close()
            await pool.close()
        }
    }

    @Test("A cancelled task stops waiting for a connection.")
    func cancelledWaiter() async throws {
        try await TestDatabase.with { database in
            let pool = ConnectionPool(database.settings, maximum: 1, acquireTimeout: .seconds(600))
            let holder = try await holdConnection(of: pool, database)
            let waiter = Task { try await pool.text("SELECT 'x'") }
            waiter.cancel()
            #expect(await postgresError { try await waiter.value }?.code == .cancelled)
            try await holder.release()
            await pool.close()
        }
    }

    @Test("A closed pool refuses new uses and lets running ones finish.")
    func closed() async throws {
        try await TestDatabase.with { database in
            let pool = database.pool(maximum: 1)
            let holder = try await holdConnection(of: pool, database)
            await pool.close()
            #expect(await postgresError { try await pool.text("SELECT 'x'") }?.code == .usage)
            try await holder.release()
        }
    }

    @Test("After a failure to connect, the next attempt may use the same place in the pool.")
    func failedConnect() async throws {
        let settings = try ConnectionSettings(conninfo: "host=/nonexistent", applicationName: "tests")
        let pool = ConnectionPool(settings, maximum: 1, acquireTimeout: .milliseconds(50))
        for _ in 1...3 {
            #expect(await postgresError { try await pool.text("SELECT 'x'") }?.code == .connectionFailed)
        }
    }

    @Test("A connection opened while the database was read only is replaced after it accepts writes again.")
    func readOnly() async throws {
        try await TestDatabase.with { database in
            let administrator = try await PostgresConnection.connect(database.settings)
            let setting = "ALTER DATABASE \(database.name) SET default_transaction_read_only"
            try await administrator.script("\(setting) = on")
            let pool = database.pool(maximum: 1)
            let error = await postgresError {
                try await pool.transaction { session throws(PostgresError) in
                    try session.execute(script: "CREATE TABLE public.t ()")
                }
            }
            #expect(error?.sqlState == .readOnlyTransaction)
            try await administrator.script("\(setting) = off")
            try await pool.transaction { session throws(PostgresError) in
                try session.execute(script: "CREATE TABLE public.t ()")
            }
            await administrator.close()
            await pool.close()
        }
    }

    private struct Holder {
        let gate: PostgresConnection
        let task: Task<String, any Error>

        func release() async throws {
            _ = try await gate.text("SELECT pg_advisory_unlock(1)::text")
            _ = try await task.value
        }
    }

    /// Keeps one connection of the pool in use until it is released.
    private func holdConnection(of pool: ConnectionPool, _ database: TestDatabase) async throws -> Holder {
        let gate = try await PostgresConnection.connect(database.settings)
        _ = try await gate.text("SELECT pg_advisory_lock(1)::text")
        let task = Task { try await pool.text("SELECT pg_advisory_lock(1)::text") }
        let waiting = """
            SELECT count(*) FROM pg_stat_activity
            WHERE wait_event = 'advisory' AND datname = current_database()
            """
        while try await gate.integer(waiting) == 0 {}
        return Holder(gate: gate, task: task)
    }
}
