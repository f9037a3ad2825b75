import Postgres
import TestSupport
import Testing

@Suite("A pooler", .enabled(if: PgBouncer.isInstalled, "pgbouncer is not installed"), .timeLimit(.minutes(5)))
struct PoolerTests {
    private func connect(_ pooler: PgBouncer) async throws -> PostgresConnection {
        try await PostgresConnection.connect(ConnectionSettings(conninfo: pooler.conninfo, applicationName: "tests"))
    }

    /// Prepares and executes a statement that returns one integer.
    private func prepared(_ sql: String, on connection: PostgresConnection) async throws -> Int32 {
        let statement = Statement(sql)
        return try await connection.withSession { session throws(PostgresError) in
            try session.execute(statement).int32(0, 0)
        }
    }

    /// The message with which connecting is refused; nil if it succeeds.
    private func refusal(_ pooler: PgBouncer) async throws -> String? {
        do {
            await (try await connect(pooler)).close()
            return nil
        } catch let error as PostgresError {
            #expect(error.code == .usage)
            return error.message
        }
    }

    /// Runs `body` while four clients run transactions through the pooler.
    private func underLoad<R: Sendable>(_ pooler: PgBouncer, _ body: () async throws -> R) async throws -> R {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for _ in 0..<4 {
                group.addTask {
                    while !Task.isCancelled {
                        _ = try await pooler.psql(
                            "SELECT pg_sleep(0.002)",
                            "BEGIN",
                            "SELECT pg_sleep(0.005)",
                            "COMMIT",
                            "SELECT 1",
                            "SELECT pg_sleep(0.001)",
                            "SELECT 2",
                            "SELECT pg_sleep(0.003)"
                        )
                    }
                }
            }
            let result = try await body()
            group.cancelAll()
            return result
        }
    }

    @Test(
        "A connection that shares server sessions with others is never accepted.",
        arguments: [PgBouncer.PoolMode.transaction, .statement],
        [[:], ["server_round_robin": "1"], ["default_pool_size": "1"], ["server_reset_query_always": "1"]]
    )
    func shared(_ mode: PgBouncer.PoolMode, _ settings: [String: String]) async throws {
        try await TestDatabase.with { database in
            try await PgBouncer.with(database, mode, settings) { pooler in
                for _ in 0..<3 {
                    let message = try #require(try await refusal(pooler))
                    #expect(message.contains("pool_mode = session") && message.contains("directly"), "\(message)")
                }
            }
        }
    }

    @Test("Statement mode is detected also if the pooler refuses BEGIN because another server session runs it.")
    func refusedTransaction() async throws {
        try await TestDatabase.with { database in
            try await PgBouncer.with(database, .statement, ["server_round_robin": "1"]) { pooler in
                try await pooler.openTwoServerConnections()
                for _ in 0..<3 {
                    let message = try #require(try await refusal(pooler))
                    #expect(message.contains("pool_mode = session"), "\(message)")
                }
            }
        }
    }

    @Test("A connection that shares server sessions is not accepted while other clients use all of them.")
    func busy() async throws {
        try await TestDatabase.with { database in
            for settings in [["default_pool_size": "8"], ["default_pool_size": "8", "server_round_robin": "1"]] {
                try await PgBouncer.with(database, .transaction, settings) { pooler in
                    let refusals = try await underLoad(pooler) {
                        var refusals = 0
                        while refusals < 40, try await refusal(pooler) != nil { refusals += 1 }
                        return refusals
                    }
                    #expect(refusals == 40)
                }
            }
        }
    }

    @Test("A refused connection leaves no settings or prepared statements in shared sessions.")
    func nothingLeft() async throws {
        try await TestDatabase.with { database in
            try await PgBouncer.with(database, .transaction, ["default_pool_size": "2"]) { pooler in
                let look = """
                    SELECT name || '=' || setting FROM pg_settings
                    WHERE source = 'session' AND name <> 'client_encoding' ORDER BY name
                    """
                let before = try await pooler.psql(look)
                for _ in 0..<3 { #expect(try await refusal(pooler) != nil) }
                for _ in 0..<4 {
                    #expect(try await pooler.psql(look) == before)
                    #expect(try await pooler.psql("SELECT name FROM pg_prepared_statements") == [])
                }
            }
        }
    }

    @Test("A pooler in session mode is accepted, for one connection after another.")
    func session() async throws {
        try await TestDatabase.with { database in
            for settings in [[:], ["default_pool_size": "2"], ["server_round_robin": "1"]] {
                try await PgBouncer.with(database, .session, settings) { pooler in
                    for _ in 0..<5 {
                        let connection = try await connect(pooler)
                        #expect(try await connection.integer("SELECT 1") == 1)
                        #expect(try await prepared("SELECT 2", on: connection) == 2)
                        await connection.close()
                    }
                }
            }
        }
    }

    @Test("If the pooler has no second connection, connecting fails within its timeout.")
    func exhausted() async throws {
        try await TestDatabase.with { database in
            try await PgBouncer.with(database, .session, ["default_pool_size": "1"]) { pooler in
                var settings = try ConnectionSettings(conninfo: pooler.conninfo, applicationName: "tests")
                settings.connectTimeout = .milliseconds(500)
                let error = await #expect(throws: PostgresError.self) {
                    try await PostgresConnection.connect(settings)
                }
                #expect(error?.code == .connectionFailed)
                #expect(error?.message.contains("pool_size") == true, "\(String(describing: error))")
            }
        }
    }

    @Test("If other clients hold all connections of the pooler, connecting names its pool_size.")
    func held() async throws {
        try await TestDatabase.with { database in
            let observer = try await PostgresConnection.connect(database.settings)
            try await PgBouncer.with(database, .session, ["default_pool_size": "1"]) { pooler in
                async let holder = pooler.psql("SELECT pg_sleep(3)")
                let sleeping = """
                    SELECT count(*)::text FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event = 'PgSleep'
                    """
                while try await observer.text(sleeping) != "1" {}
                var settings = try ConnectionSettings(conninfo: pooler.conninfo, applicationName: "tests")
                settings.connectTimeout = .milliseconds(500)
                let error = await #expect(throws: PostgresError.self) {
                    try await PostgresConnection.connect(settings)
                }
                #expect(error?.code == .connectionFailed)
                #expect(error?.message.contains("first query") == true, "\(String(describing: error))")
                #expect(error?.message.contains("pool_size") == true)
                _ = try await holder
            }
            await observer.close()
        }
    }

    @Test("No two connections use the same name for a prepared statement.")
    func names() async throws {
        try await TestDatabase.with { database in
            var all: Set<String> = []
            for _ in 0..<4 {
                let connection = try await PostgresConnection.connect(database.settings)
                _ = try await prepared("SELECT 1", on: connection)
                _ = try await prepared("SELECT 2", on: connection)
                let list = "SELECT string_agg(name, ' ') FROM pg_prepared_statements"
                let names = Set(try await connection.text(list).split(separator: " ").map(String.init))
                #expect(names.count == 2 && all.isDisjoint(with: names), "\(names)")
                all.formUnion(names)
                await connection.close()
            }
        }
    }
}
