import AppleSimulator
import StoreTestSupport
import TestSupport
import Testing

@Suite(
    "A pooler between siwad and PostgreSQL",
    .enabled(if: PgBouncer.isInstalled, "pgbouncer is not installed"),
    .timeLimit(.minutes(10))
)
struct PoolerTests {
    private let commands = [
        ["serve"], ["migrate"], ["migrate", "status"], ["dead-letters", "list"], ["dead-letters", "stats"],
        ["dead-letters", "show", "1"], ["dead-letters", "replay", "--all", "--note", "x"],
        ["dead-letters", "discard", "--all", "--note", "x"], ["notifications", "list"], ["accounts", "list"],
        ["sessions", "list"],
    ]

    @Test("Through a pooler in transaction mode, the daemon and the commands end with 78, with or without a spool.")
    func transactionMode() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await PgBouncer.with(database, .transaction) { pooler in
                try await DaemonFixture.with(database.conninfo) { fixture in
                    let spool = try TemporaryDirectory()
                    for settings in [[:], ["SIWAD_SPOOL_DIRECTORY": spool.file("spool")]] {
                        let environment = fixture.environment(
                            settings.merging(["SIWAD_DATABASE_URL": pooler.conninfo]) { _, given in given }
                        )
                        for command in commands {
                            let run = try await siwad(command, environment: environment)
                            #expect(run.status == 78, "\(command): \(run.output) \(run.errors)")
                            let last = run.errorLines.last ?? ""
                            #expect(last.contains("pool_mode = session for siwad"), "\(command): \(last)")
                            #expect(last.contains("SIWAD_DATABASE_URL"), "\(command): \(last)")
                        }
                        let doctor = try await siwad(["doctor"], environment: environment)
                        #expect(doctor.status == 1)
                        let line = doctor.lines.first { $0.hasPrefix("✗ database ") } ?? ""
                        #expect(line.contains("pool_mode = session for siwad"), "\(doctor.output)")
                    }
                }
            }
        }
    }

    @Test("Statement mode ends the daemon and a command with 78, also if the pooler has several server connections.")
    func statementMode() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await PgBouncer.with(database, .statement, ["server_round_robin": "1"]) { pooler in
                try await pooler.openTwoServerConnections()
                try await DaemonFixture.with(database.conninfo) { fixture in
                    let environment = fixture.environment(["SIWAD_DATABASE_URL": pooler.conninfo])
                    for command in [["serve"], ["accounts", "list"]] {
                        let run = try await siwad(command, environment: environment)
                        #expect(run.status == 78, "\(command): \(run.output) \(run.errors)")
                        let last = run.errorLines.last ?? ""
                        #expect(last.contains("pool_mode = session for siwad"), "\(command): \(last)")
                    }
                }
            }
        }
    }

    @Test("Other clients of the pooler see none of siwad's settings, in transaction mode or in session mode.")
    func nothingLeaks() async throws {
        let look = """
            SELECT name || '=' || setting FROM pg_settings
            WHERE source = 'session' AND name <> 'client_encoding'
            UNION ALL SELECT name FROM pg_prepared_statements ORDER BY 1
            """
        for mode in [PgBouncer.PoolMode.transaction, .session] {
            try await TestDatabase.with(.siwa) { database in
                try await PgBouncer.with(database, mode) { pooler in
                    let before = try await pooler.psql(look)
                    for command in [["dead-letters", "list"], ["migrate"], ["accounts", "list"]] {
                        _ = try await siwad(command, environment: ["SIWAD_DATABASE_URL": pooler.conninfo])
                        for _ in 0..<3 { #expect(try await pooler.psql(look) == before) }
                    }
                }
            }
        }
    }

    @Test("Through a pooler in session mode, every notification is accepted.")
    func sessionMode() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await PgBouncer.with(database, .session) { pooler in
                try await DaemonFixture.with(database.conninfo) { fixture in
                    try await fixture.withDaemon(["SIWAD_DATABASE_URL": pooler.conninfo]) { _, addresses in
                        let body = try fixture.body(fixture.event())
                        #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                        let list = try await siwad(
                            ["notifications", "list"],
                            environment: fixture.environment(["SIWAD_DATABASE_URL": pooler.conninfo])
                        )
                        #expect(list.status == 0, "\(list.errors)")
                        #expect(list.output.contains("email-disabled"), "\(list.output)")
                    }
                }
            }
        }
    }
}
