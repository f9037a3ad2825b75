import AppleSimulator
import FoundationEssentials
import Glibc
import JOSE
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Ctrl-C during a long command", .timeLimit(.minutes(5)))
struct InterruptionTests {
    /// A shell starts background processes with SIGINT ignored.
    private static let interruptible = ["/usr/bin/env", "--default-signal=INT"]

    /// Interrupts a command that waits for a lock of another session.
    private func interrupt(_ arguments: [String], in fixture: DaemonFixture, at relation: String) async throws {
        let command = fixture.start(arguments: arguments, under: Self.interruptible)
        try await eventually("\(arguments[0]) to wait for the lock") {
            try await !fixture.texts(
                "SELECT 1::text \(DaemonFixture.ownLocks) AND relation = '\(relation)'::regclass AND NOT granted"
            ).isEmpty
        }
        command.send("INT")
        let status = try await command.end(within: .seconds(8))
        #expect(status == 128 + SIGINT)
        let note = "interrupted: what is not printed as applied was rolled back, and siwad migrate continues with it"
        #expect(command.output.isEmpty && command.log == (arguments == ["migrate"] ? [note] : []), "\(command.log)")
    }

    @Test(
        "A command that waits for the database ends by the signal, and has changed nothing.",
        arguments: [
            (["sessions", "end", "--sub", "person", "--note", "x"], "siwa.account_sessions"),
            (["dead-letters", "discard", "--all", "--note", "x"], "siwa.dead_letters"),
            (["migrate"], "siwa.schema_migrations"), (["doctor"], "siwa.schema_migrations"),
            (["accounts", "list"], "siwa.accounts"),
            (["changes", "follow", "--from-start", "--until-current"], "siwa.publication"),
        ]
    )
    func waiting(command: [String], relation: String) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.run(
                    """
                    SELECT siwa.record_sign_in('com.example.one', 'person');
                    SELECT siwa.open_session('com.example.one', 'person', 's' || i) FROM generate_series(1, 100) AS i;
                    """
                )
                try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE \(relation) IN ACCESS EXCLUSIVE MODE")
                } _: {
                    try await interrupt(command, in: fixture, at: relation)
                }
                // The server goes on with a statement until it notices that its client is gone.
                try await eventually("the connection to be gone") {
                    try await fixture.texts(
                        "SELECT '' FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'siwad'"
                    ).isEmpty
                }
                #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.live_sessions") == ["100"])
                #expect(try await fixture.texts("SELECT action FROM siwa.operator_actions").isEmpty)
            }
        }
    }

    /// Runs a test with a `siwad migrate` that waits for a lock, and the query for the server's processes that wait there.
    private func withWaitingMigration(
        _ body: (DaemonFixture, DaemonProcess, _ waiting: String) async throws -> Void
    ) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                let waiting = """
                    SELECT pid::text \(DaemonFixture.ownLocks)
                        AND relation = 'siwa.schema_migrations'::regclass AND NOT granted
                    """
                try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE siwa.schema_migrations IN ACCESS EXCLUSIVE MODE")
                } _: {
                    let command = fixture.start(arguments: ["migrate"], under: Self.interruptible)
                    try await eventually("the migration to wait for the lock") {
                        try await !fixture.texts(waiting).isEmpty
                    }
                    try await body(fixture, command, waiting)
                }
            }
        }
    }

    @Test(
        "A migration that ends by a signal also ends on the server, while it still waits for a lock there.",
        arguments: [("INT", SIGINT), ("TERM", SIGTERM), ("KILL", SIGKILL)]
    )
    func migrating(signal: String, number: Int32) async throws {
        try await withWaitingMigration { fixture, command, waiting in
            command.send(signal)
            #expect(try await command.end(within: .seconds(8)) == 128 + number)
            if signal == "KILL" {
                try await eventually("the server to notice") { try await fixture.texts(waiting).isEmpty }
            } else {
                #expect(try await fixture.texts(waiting).isEmpty)
            }
        }
    }

    @Test("A second signal ends siwad migrate although PostgreSQL does not answer.")
    func twice() async throws {
        try await withWaitingMigration { fixture, command, waiting in
            let server = try #require(Int32(try await fixture.texts(waiting)[0]))
            kill(server, SIGSTOP)
            defer { kill(server, SIGCONT) }
            command.send("INT")
            let process = try #require(command.processID)
            try await eventually("the handler of the second signal") {
                let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
                let line = status.split(separator: "\n").first { $0.hasPrefix("SigCgt:") }
                let caught = line.flatMap { UInt64($0.dropFirst(7).drop { $0 == "\t" }, radix: 16) } ?? 0
                return caught & 1 << (SIGINT - 1) != 0
            }
            command.send("INT")
            #expect(try await command.end(within: .seconds(8)) == 128 + SIGINT)
        }
    }

    @Test("A migration that waits for another siwad migrate names its process.")
    func otherMigrator() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await database.withOpenTransaction { session throws(PostgresError) in
                    _ = try session.execute(
                        once: "SELECT pg_advisory_xact_lock(hashtextextended('schema_migrations of \"siwa\"', 0))"
                    )
                } _: {
                    let command = fixture.start(arguments: ["migrate"], under: Self.interruptible)
                    try await eventually("the note") {
                        command.log.contains { $0.hasPrefix("waiting for another siwad migrate (process ") }
                    }
                    command.send("INT")
                    #expect(try await command.end(within: .seconds(8)) == 128 + SIGINT)
                }
            }
        }
    }

    @Test("A migration goes on when the reader of its output is gone.")
    func closedOutput() async throws {
        try await TestDatabase.with { database in
            let environment = ["SIWAD_DATABASE_URL": database.conninfo]
            let migrate = try await siwad(["migrate"], redirectedBy: "| true", environment: environment)
            #expect(migrate.errors.isEmpty, "\(migrate.errors)")
            let status = try await siwad(["migrate", "status"], environment: environment)
            #expect(status.status == 0, "\(status.output)\(status.errors)")
        }
    }

    @Test("A dry run of a replay ends with 0 when the reader of its output is gone.")
    func closedDryRun() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.run(
                """
                INSERT INTO siwa.dead_letters (
                    received_at, last_received_at, reason, detail, body, token_digest, sub, aud, verified_kid, verified_at
                )
                VALUES (now(), now(), 'expired', '', 'no token', sha256(''), 'p', 'a', 'k', now())
                """
            )
            let number = try await fixture.texts("SELECT id::text FROM siwa.dead_letters")[0]
            // At its end, the missing letter would be an error.
            let arguments = ["dead-letters", "replay", number, "999999", "--dry-run", "--json"]
            let script = #""$@" | true; echo "status ${PIPESTATUS[0]}""#
            let replay = fixture.start(arguments: arguments, under: ["/bin/bash", "-c", script, "bash"])
            #expect(try await replay.end() == 0)
            #expect(replay.output == ["status 0"] && replay.log.isEmpty, "\(replay.output)\(replay.log)")
        }
    }

    @Test("simulate send says what it sent and what became of it, and ends by the signal.")
    func sending() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await TemporaryDirectory.with { directory in
                let key = try directory.write("key.pem", try fixture.apple.key.pem())
                let send = fixture.start(
                    arguments: [
                        "simulate", "send", addresses.notifications, "--key", key, "--type", "email-enabled",
                        "--app", "com.example.one", "--count", "100000", "--rate", "50",
                    ]
                )
                let stored = "SELECT count(*)::text FROM siwa.notifications"
                try await eventually("some notifications") { try await fixture.texts(stored) != ["0"] }
                send.send("INT")
                let status = try await send.end()
                #expect(status == 128 + SIGINT)
                let count = try await fixture.texts(stored)[0]
                #expect(send.output.first?.hasPrefix("\(count) sent in ") == true, "\(send.output)\(send.log)")
                #expect(send.log.isEmpty, "\(send.log)")
            }
        }
    }

    @Test("The key server of simulate serve ends with 0.")
    func serving() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let key = try directory.write("key.pem", try fixture.apple.key.pem())
                let arguments = ["simulate", "serve", "--key", key, "--listen", "127.0.0.1:0"]
                let server = fixture.start(arguments: arguments)
                try await eventually("the key server") { !server.output.isEmpty }
                server.send("INT")
                let status = try await server.end()
                #expect(status == 0)
                #expect(server.log.isEmpty, "\(server.log)")
            }
        }
    }
}
