import AppleSimulator
import Postgres
import TestSupport
import Testing

@Suite("A schema public that others may write to", .timeLimit(.minutes(10)))
struct HostileSchemaTests {
    private static let types = [
        "email-disabled", "email-enabled", "consent-revoked", "account-delete", "account-deleted",
    ]

    /// Runs a test with a database whose `public` holds overloads of what siwad's SQL uses, not migrated yet.
    private func withHostileDatabase(_ body: (TestDatabase, PostgresConnection) async throws -> Void) async throws {
        try await TestDatabase.with { database in
            let connection = try await DaemonFixture.connect(database.conninfo)
            let script = try HostileObjects.script(database: database.name)
            try await connection.withSession(deadline: .seconds(120)) { session throws(PostgresError) in
                try session.execute(script: script)
            }
            await connection.close()
            let observer = try await DaemonFixture.connect(database.conninfo)
            try await body(database, observer)
            await observer.close()
        }
    }

    private func calls(_ connection: PostgresConnection) async throws -> String? {
        try await connection.withSession { session throws(PostgresError) in
            try session.execute(Statement(once: HostileObjects.calls)).optionalString(0, 0)
        }
    }

    @Test("The traps are found by a session that does not pin its search_path, so that the other tests mean something.")
    func traps() async throws {
        try await withHostileDatabase { _, connection in
            let path = "SET search_path = public, pg_catalog;"
            let statements = [
                "SELECT convert_to('a', 'UTF8')", "SELECT to_regclass('x')", "SELECT 'a'::text = 'b'::text",
                "SELECT now() + interval '1 day'", "SELECT greatest(1, 2) < 3", "SELECT unnest(ARRAY[1])",
                "SELECT hashtextextended('a', 0)", "SELECT format('%s', 'a'::text)", "SELECT 'a' || 'b'",
            ]
            for statement in statements {
                let error = await #expect(throws: PostgresError.self, "\(statement)") {
                    try await connection.withSession { session throws(PostgresError) in
                        try session.execute(script: path + statement)
                    }
                }
                #expect(error?.message.contains("hostile") == true, "\(statement): \(String(describing: error))")
            }
            let counted = try await calls(connection)
            #expect(counted != nil)
        }
    }

    @Test("Migrating, serving and every command call nothing of it, nor do the functions that an application calls.")
    func everything() async throws {
        try await withHostileDatabase { database, observer in
            let migrated = try await siwad(["migrate", "up"], environment: ["SIWAD_DATABASE_URL": database.conninfo])
            #expect(migrated.status == 0, "\(migrated.errors)")
            #expect(try await calls(observer) == nil)
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.withDaemon(["SIWAD_KEYS_REFRESH_FLOOR": "1s"]) { _, addresses in
                    for (index, type) in Self.types.enumerated() {
                        let body = try fixture.body(fixture.event(type, sub: "person\(index)", id: "id\(index)"))
                        #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                    }
                    for _ in 0..<2 {
                        let foreign = try fixture.body(fixture.event(app: "com.example.unheard"))
                        #expect(try await Web.post(foreign, to: addresses.notifications).status == 200)
                    }
                    try await callFunctions(as: database)
                    try await eventually("maintenance") {
                        try await fixture.texts("SELECT task FROM siwa.maintenance").count == 7
                    }
                    try await runCommands(in: fixture)
                    try await settleLetter(in: fixture, addresses)
                }
            }
            #expect(try await calls(observer) == nil)
        }
    }

    /// As an application whose sessions find the traps first.
    private func callFunctions(as database: TestDatabase) async throws {
        let application = try await DaemonFixture.connect(database.conninfo)
        try await application.withSession { session throws(PostgresError) in
            try session.execute(script: "SET ROLE siwad_application; SET search_path = public, pg_catalog")
            for call in [
                "record_sign_in('com.example.one', 'shopper', 'a@privaterelay.appleid.com', true)",
                "open_session('com.example.one', 'shopper', 's1', expires_at => 'tomorrow')",
                "rotate_session('s1', 's2')", "extend_session('s2', 'infinity')", "session_is_live('s2')",
                "sessions_of('com.example.one', 'shopper')", "end_session('s2')",
                "end_sessions('com.example.one', 'shopper')",
                "open_session('com.example.one', 'shopper', 's3')", "open_session('com.example.one', 'shopper', 's4')",
            ] {
                try session.execute(script: "SELECT siwa.\(call)")
            }
            for view in [
                "account_states", "account_history", "sessions", "live_sessions", "undeliverable_addresses",
            ] {
                try session.execute(script: "SELECT * FROM siwa.\(view)")
            }
        }
        await application.close()
    }

    private static let listFilters = [
        [
            "accounts", "list", "--sub", "person0", "--team", "AAAAAAAAAA", "--app", "com.example.one", "--state",
            "unknown",
        ],
        ["accounts", "history", "--sub", "person0", "--team", "AAAAAAAAAA", "--app", "com.example.one"],
        ["sessions", "list", "--team", "AAAAAAAAAA", "--app", "com.example.one", "--live"],
        ["sessions", "list", "--ended", "--reason", "rotated", "--since", "2026-01-01", "--until", "2126-01-01"],
        ["sessions", "list", "--reason", "expired"],
        [
            "notifications", "list", "--sub", "person0", "--team", "AAAAAAAAAA", "--app", "com.example.one", "--type",
            "email-disabled", "--outcome", "applied", "--source", "endpoint", "--since", "2026-01-01", "--until",
            "2126-01-01",
        ],
        ["notifications", "list", "--jti", "id3", "--type", "account-deleted"],
        [
            "dead-letters", "list", "--status", "any", "--reason", "unknown-audience", "--app", "com.example.unheard",
            "--type",
            "email-disabled", "--sub", "person", "--since", "2026-01-01", "--until", "2126-01-01",
        ],
        ["dead-letters", "list", "--id", "1", "--id", "2"],
        ["dead-letters", "stats", "--reason", "unknown-audience", "--status", "any"],
    ]

    private func runCommands(in fixture: DaemonFixture) async throws {
        let environment = fixture.environment()
        let commands = [
            ["migrate", "status"], ["accounts", "list"], ["accounts", "show", "person0"],
            ["accounts", "history", "person0"], ["sessions", "list"], ["sessions", "list", "--sub", "shopper"],
            ["sessions", "end", "s3", "--note", "x"], ["sessions", "end", "--sub", "shopper", "--note", "x"],
            ["notifications", "list"], ["notifications", "show", "id0"],
            ["dead-letters", "list"], ["dead-letters", "stats"], ["dead-letters", "show", "1"],
            ["dead-letters", "replay", "--all", "--dry-run"], ["dead-letters", "replay", "--id", "1", "--note", "x"],
            ["dead-letters", "discard", "--id", "1", "--note", "x"],
            ["dead-letters", "reopen", "--id", "1", "--note", "x"], ["clients", "list"],
            ["clients", "remove", "com.example.other", "--note", "x"],
        ]
        for arguments in commands {
            let run = try await siwad(arguments, environment: environment)
            // A replay of a letter for an app that is still unknown leaves it as it was.
            #expect(
                run.status == (arguments.contains("replay") && arguments.contains("--id") ? 1 : 0),
                "\(arguments): \(run.errors)"
            )
        }
        for arguments in Self.listFilters {
            let run = try await siwad(arguments, environment: environment)
            #expect([0, 4].contains(run.status), "\(arguments): \(run.errors)")
        }
        let added = fixture.environment(["SIWAD_APPS": "\(DaemonFixture.apps),CCCCCCCCCC/com.example.unheard"])
        let replay = try await siwad(["dead-letters", "replay", "--id", "2", "--note", "x"], environment: added)
        #expect(replay.status == 0, "\(replay.errors)")
        let checkup = try await siwad(["doctor"], environment: environment)
        #expect(!checkup.output.contains("hostile") && !checkup.errors.contains("hostile"), "\(checkup.output)")
    }

    /// Waits until the daemon has replayed by itself a letter that it kept because the key set could not be fetched.
    private func settleLetter(in fixture: DaemonFixture, _ addresses: DaemonProcess.Addresses) async throws {
        let rotated = try SimulatedApple.generate()
        fixture.endpoint.now(.status(500))
        let body = try fixture.body(fixture.event(sub: "keyless"), signedBy: rotated)
        #expect(try await Web.post(body, to: addresses.notifications).status == 503)
        fixture.endpoint.now(.keySet(rotated.keySetJSON))
        try await eventually("the daemon to settle the letter") {
            let another = try fixture.body(fixture.event(sub: "keyless"), signedBy: rotated)
            _ = try await Web.post(another, to: addresses.notifications)
            let settled =
                "SELECT status FROM siwa.dead_letters WHERE reason = 'keys-unavailable' AND resolved_by = 'siwad'"
            return try await fixture.texts(settled) == ["replayed"]
        }
    }

    @Test("The output of migrate sql calls nothing of it, run by a role whose search_path is left as it is.")
    func script() async throws {
        try await withHostileDatabase { database, observer in
            let script = try await siwad(["migrate", "sql"]).output
            let administrator = try await DaemonFixture.connect(database.conninfo)
            try await administrator.withSession { session throws(PostgresError) in
                try session.execute(script: "SET search_path = public, pg_catalog")
                try session.execute(script: script)
            }
            await administrator.close()
            #expect(try await calls(observer) == nil)
            let status = try await siwad(["migrate", "status"], environment: ["SIWAD_DATABASE_URL": database.conninfo])
            #expect(status.status == 0, "\(status.output)")
        }
    }
}
