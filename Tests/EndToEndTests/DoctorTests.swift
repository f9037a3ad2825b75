import JOSE
import StoreTestSupport
import TestSupport
import Testing

@Suite("siwad doctor with a running daemon", .timeLimit(.minutes(10)))
struct DoctorTests {
    /// Runs a test with a daemon that has finished its first maintenance, and the environment for siwad doctor.
    private func withDaemon(
        _ body: (DaemonFixture, DaemonProcess, [String: String]) async throws -> Void
    ) async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            try await eventually("the first maintenance") {
                try await fixture.texts("SELECT task FROM siwa.maintenance").count == 7
            }
            var environment = fixture.environment()
            environment["SIWAD_LISTEN"] = authority(of: addresses.notifications)
            environment["SIWAD_OPERATIONS_LISTEN"] = authority(of: addresses.operations)
            try await body(fixture, daemon, environment)
        }
    }

    /// `127.0.0.1:8080` of `http://127.0.0.1:8080/path`.
    private func authority(of url: String) -> String {
        url.split(separator: "/").dropFirst().first.map(String.init) ?? ""
    }

    /// The findings of a check: `pass: 3 app groups …`.
    private func findings(_ check: String, _ environment: [String: String]) async throws -> [String] {
        let run = try await siwad(["doctor", "--json"], environment: environment)
        return try run.lines.compactMap { line in
            let finding = try JSONValue(parsing: Array(line.utf8))
            guard finding["check"]?.string == check else { return nil }
            return "\(finding["status"]?.string ?? "-"): \(finding["detail"]?.string ?? "-")"
        }
    }

    @Test("Without a problem it ends with 0 and prints a line for each check, at most 80 columns on a terminal.")
    func well() async throws {
        try await withDaemon { _, _, environment in
            let run = try await siwad(["doctor"], environment: environment)
            #expect(run.status == 0, "\(run.output)")
            #expect(run.errors.isEmpty)
            let checks = Set(run.lines.compactMap { $0.split(separator: " ").dropFirst().first.map(String.init) })
            for check in [
                "configuration", "files", "operations", "database", "database-tls", "public-schema", "schema",
                "objects", "writes", "keys", "endpoint", "readiness", "instance", "database-clock",
                "partitions", "maintenance", "sealing-keys", "token-keys", "dead-letters", "notifications", "spool",
            ] {
                #expect(checks.contains(check), "\(check) is missing: \(run.output)")
            }
            #expect(!run.output.contains("✗"))
            let terminal = try await siwadOnTerminal(["doctor"], columns: 80, environment: environment)
            #expect(terminal.status == 0, "\(terminal.output)")
            #expect(terminal.lines.count >= run.lines.count)
            for line in terminal.lines { #expect(line.count <= 80, "\(line)") }
        }
    }

    @Test("With --json each check is an object with check, subject, status, detail and remedy.")
    func json() async throws {
        try await withDaemon { _, _, environment in
            let run = try await siwad(["doctor", "--json"], environment: environment)
            #expect(run.status == 0, "\(run.output)")
            for line in run.lines {
                let finding = try JSONValue(parsing: Array(line.utf8))
                #expect(line.hasPrefix(#"{"check":""#), "\(line)")
                for member in ["check", "subject", "status", "detail", "remedy"] {
                    #expect(finding[member] != nil, "\(member) in \(line)")
                }
                #expect(["pass", "warn"].contains(finding["status"]?.string), "\(line)")
            }
        }
    }

    @Test("It names a dropped index and a changed function, and ends with 1.")
    func drift() async throws {
        try await withDaemon { fixture, _, environment in
            try await fixture.run(
                """
                DROP INDEX siwa.accounts_email;
                CREATE OR REPLACE FUNCTION siwa.session_is_live(session_id text) RETURNS boolean
                    LANGUAGE sql STABLE RETURN true
                """
            )
            let run = try await siwad(["doctor"], environment: environment)
            #expect(run.status == 1)
            let wrong = run.lines.filter { $0.hasPrefix("✗") }
            #expect(wrong.count == 1, "\(run.output)")
            let finding = try #require(wrong.first)
            #expect(finding.hasPrefix("✗ objects "))
            #expect(finding.contains("index accounts.accounts_email is missing"), "\(finding)")
            #expect(finding.contains("function session_is_live(text) is another one"), "\(finding)")
        }
    }

    @Test("The schema is as made also where the database has other settings for texts, intervals and names.")
    func unusualSettings() async throws {
        try await withDaemon { fixture, _, environment in
            let settings = [
                "standard_conforming_strings = off", "quote_all_identifiers = on", "intervalstyle = iso_8601",
                "datestyle = 'SQL, DMY'", "bytea_output = escape", "timezone = 'Asia/Kathmandu'",
            ]
            let database = try await fixture.texts("SELECT current_database()")[0]
            for setting in settings { try await fixture.run("ALTER DATABASE \(database) SET \(setting)") }
            let run = try await siwad(["doctor"], environment: environment)
            #expect(run.status == 0 && run.lines.contains { $0.hasPrefix("✓ objects ") }, "\(run.output)")
        }
    }

    @Test(
        "It reports an unreachable database and an endpoint without a response, and still does the other checks."
    )
    func away() async throws {
        try await withDaemon { fixture, daemon, environment in
            try await fixture.closeDatabase()
            let without = try await siwad(["doctor"], environment: environment)
            #expect(without.status == 1)
            #expect(without.lines.contains { $0.hasPrefix("✗ database ") }, "\(without.output)")
            #expect(without.lines.contains { $0.hasPrefix("✓ keys ") })
            #expect(without.lines.contains { $0.hasPrefix("✓ endpoint ") })
            #expect(!without.lines.contains { $0.contains(" objects ") })
            try await fixture.openDatabase()
            await daemon.kill()
            let endpoint = try await findings("endpoint", environment)
            #expect(endpoint.count == 1 && endpoint.first?.hasPrefix("fail: ") == true, "\(endpoint)")
            #expect(try await findings("objects", environment).first?.hasPrefix("pass: ") == true)
            #expect(try await siwad(["doctor"], environment: environment).status == 1)
        }
    }

    @Test("It notices that the daemon has another database or other settings, and which ones.")
    func instance() async throws {
        try await withDaemon { fixture, _, environment in
            func finding(_ changes: [String: String]) async throws -> String {
                try await findings("instance", environment.merging(changes) { $1 }).joined()
            }
            #expect(try await finding([:]).hasPrefix("pass: "))
            // The same value in another spelling.
            #expect(try await finding(["SIWAD_CLOCK_LEEWAY": "300s"]).hasPrefix("pass: "))
            let settings = try await finding(["SIWAD_BATCH_LIMIT": "17", "SIWAD_RETENTION": "40d"])
            #expect(settings.hasPrefix("warn: "))
            #expect(settings.hasSuffix(" has other values of SIWAD_BATCH_LIMIT, SIWAD_RETENTION"), "\(settings)")
            try await TestDatabase.with(.siwa) { other in
                let database = try await finding(["SIWAD_DATABASE_URL": other.conninfo])
                #expect(database.hasPrefix("fail: "))
                #expect(database.hasSuffix(" uses another database than this configuration"), "\(database)")
            }
        }
    }

    @Test("It compares with the settings that the daemon read at SIGHUP.")
    func reloaded() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: AAAAAAAAAA/com.example.one\n")
                let daemon = fixture.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                var environment = fixture.environment()
                environment["SIWAD_OPERATIONS_LISTEN"] = authority(of: try await daemon.ready().operations)
                environment["SIWAD_APPS"] = "AAAAAAAAAA/com.example.two"
                #expect(try await findings("instance", environment).first?.hasSuffix("of SIWAD_APPS") == true)
                _ = try directory.write("siwad.yaml", "apps: AAAAAAAAAA/com.example.two\n")
                daemon.send("HUP")
                try await eventually("the new app") {
                    try await findings("instance", environment).first?.hasPrefix("pass: ") == true
                }
            }
        }
    }
}
