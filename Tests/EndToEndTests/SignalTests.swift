import AppleSimulator
import Foundation
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Signals to the daemon", .timeLimit(.minutes(10)))
struct SignalTests {
    private static let one = "AAAAAAAAAA/com.example.one"

    @Test("At SIGHUP other apps take effect without a restart; a malformed file changes nothing and is named.")
    func reload() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                // The environment would override the file.
                let daemon = fixture.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                let addresses = try await daemon.ready()
                let post = { (id: String) in
                    try await Web.post(
                        fixture.body(fixture.event("consent-revoked", app: "com.example.two", id: id)),
                        to: addresses.notifications
                    ).status
                }
                #expect(try await post("early") == 200)
                #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])

                _ = try directory.write("siwad.yaml", "apps: \(Self.one),AAAAAAAAAA/com.example.two+com.example.web\n")
                daemon.send("HUP")
                try await eventually("the configuration to be read again") {
                    daemon.log.contains { $0.contains("\"configuration re-read\"") }
                }
                #expect(try await post("after") == 200)
                #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["after"])
                let client = "SELECT team_id FROM siwa.clients WHERE client_id = 'com.example.web'"
                #expect(try await fixture.texts(client) == ["AAAAAAAAAA"])
                // Counted after the response.
                try await eventually("the metric of the other app") {
                    try await Web.get(addresses.operations + "/metrics").body
                        .contains("siwad_last_notification_timestamp_seconds{app_id=\"com.example.two\"} ")
                }

                _ = try directory.write("siwad.yaml", "apps: \(Self.one)\naps: nonsense\n")
                daemon.send("HUP")
                try await eventually("the refusal of the bad file") {
                    daemon.log.contains { $0.contains("the configuration was not re-read") && $0.contains("aps") }
                }
                #expect(try await post("still") == 200)
                let stored = try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY jti")
                #expect(stored == ["after", "still"])
                #expect(daemon.status == nil)
            }
        }
    }

    @Test("At SIGHUP a mistake in a setting that only a restart applies changes nothing and is named.")
    func mistakeForRestart() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                let daemon = fixture.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                let sealing = try DaemonFixture.sealingKey.get()
                let mistakes = [
                    ("apple_url: http://apple.example.com", "apple_url"),
                    (
                        "tls_certificate: \(directory.file("none.pem"))\ntls_key: \(directory.file("none.key"))",
                        "none.pem"
                    ),
                    (
                        "apple_keys: AAAAAAAAAA/ABCDEFGHIJ=\(directory.file("none.p8"))\nsealing_keys: \(sealing)",
                        "none.p8"
                    ),
                ]
                for (mistake, cause) in mistakes {
                    _ = try directory.write("siwad.yaml", "apps: AAAAAAAAAA/com.example.never\n\(mistake)\n")
                    daemon.send("HUP")
                    try await eventually("the refusal of \(mistake)") {
                        daemon.log.contains { $0.contains("the configuration was not re-read") && $0.contains(cause) }
                    }
                }
                #expect(try await !fixture.texts("SELECT client_id FROM siwa.clients").contains("com.example.never"))
            }
        }
    }

    @Test("A daemon that started without sign-in says that Apple's keys take effect with a restart.")
    func laterAppleKeys() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let path = try await SigningFixture.key("AuthKey_ABCDEFGHIJ.p8", in: directory)
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                let daemon = fixture.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                let keys =
                    "apple_keys: AAAAAAAAAA/ABCDEFGHIJ=\(path)\nsealing_keys: \(try DaemonFixture.sealingKey.get())\n"
                _ = try directory.write("siwad.yaml", "apps: \(Self.one)\n\(keys)")
                daemon.send("HUP")
                try await eventually("the warning") {
                    daemon.log.contains { $0.contains("take effect with a restart") && $0.contains("apple_keys") }
                }
            }
        }
    }

    @Test("At SIGHUP a log level that is no longer set returns to the default.")
    func logLevel() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                let daemon = fixture.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                let apps = "apps: \(Self.one),AAAAAAAAAA/com.example.two\n"
                _ = try directory.write("siwad.yaml", apps + "log_level: error\n")
                daemon.send("HUP")
                try await eventually("the new app") {
                    try await fixture.texts("SELECT client_id FROM siwa.clients").contains("com.example.two")
                }
                _ = try directory.write("siwad.yaml", apps)
                daemon.send("HUP")
                try await eventually("the debug line") {
                    daemon.log.contains { $0.contains("\"configuration re-read\"") }
                }
            }
        }
    }

    @Test("A daemon that is older than the schema reconnects, and writes the apps that a reload could not write.")
    func reloadOnNewerSchema() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                let daemon = fixture.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                let addresses = try await daemon.ready()
                try await fixture.run(
                    "INSERT INTO siwa.schema_migrations (number, name, checksum) VALUES (9999, 'tomorrow', 'ffff')"
                )
                try await fixture.closeDatabase()
                _ = try directory.write("siwad.yaml", "apps: \(Self.one),AAAAAAAAAA/com.example.later\n")
                daemon.send("HUP")
                try await eventually("the warning") {
                    daemon.log.contains { $0.contains("the apps are written to the database when it is reachable") }
                }
                try await fixture.openDatabase()
                try await eventually("the new app") {
                    try await fixture.texts("SELECT client_id FROM siwa.clients").contains("com.example.later")
                }
                let body = try fixture.body(fixture.event(app: "com.example.later"))
                try await eventually("a notification to be stored") {
                    try await Web.post(body, to: addresses.notifications).status == 200
                }
            }
        }
    }

    @Test("SIGHUP during the start does not end the daemon.")
    func earlyReload() async throws {
        try await DaemonFixture.with { fixture in
            let silent = try SilentServer()
            let daemon = try await starting(fixture, silent, connectTimeout: 5)
            daemon.send("HUP")
            #expect(try await daemon.end() == 69)
        }
    }

    // Without a handler, the first process of a container would ignore the signal.
    @Test("SIGTERM or SIGINT before the services run ends the daemon immediately with 0.", arguments: ["TERM", "INT"])
    func endDuringStart(signal: String) async throws {
        try await DaemonFixture.with { fixture in
            let silent = try SilentServer()
            let daemon = try await starting(fixture, silent, connectTimeout: 60)
            daemon.send(signal)
            #expect(try await daemon.end(within: .seconds(30)) == 0)
        }
    }

    /// A daemon that waits for a database, and has handlers for signals.
    private func starting(
        _ fixture: DaemonFixture,
        _ silent: SilentServer,
        connectTimeout: Int
    ) async throws -> DaemonProcess {
        let url = "host=127.0.0.1 port=\(silent.port) connect_timeout=\(connectTimeout)"
        let daemon = fixture.start(["SIWAD_DATABASE_URL": url])
        try await eventually("SIGHUP to be handled") {
            guard let process = daemon.processID else { return false }
            // The signals with a handler (proc(5), `SigCgt`).
            let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
            let caught = status.split(separator: "\n").first { $0.hasPrefix("SigCgt:") }?.dropFirst(8)
            return (UInt64(caught ?? "", radix: 16) ?? 0) & 1 << UInt64(SIGHUP - 1) != 0
        }
        return daemon
    }

    @Test("SIGINT during the start ends the daemon immediately, even while it waits for a lock.")
    func earlyInterruption() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                let daemon = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE siwa.clients IN ACCESS EXCLUSIVE MODE")
                } _: {
                    let daemon = fixture.start()
                    try await eventually("the daemon to wait for the lock") {
                        try await fixture.texts(
                            "SELECT 1::text \(DaemonFixture.ownLocks) AND relation = 'siwa.clients'::regclass AND NOT granted"
                        ).isEmpty == false
                    }
                    daemon.send("INT")
                    // Earlier than the lock timeout.
                    #expect(try await daemon.end(within: .seconds(8)) == 0)
                    return daemon
                }
                #expect(daemon.status == 0)
            }
        }
    }

    @Test("A second SIGTERM ends the daemon immediately, without a 200 for requests that are not stored.")
    func secondTermination() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_SHUTDOWN_GRACE": "10m"]) { fixture, daemon, addresses in
            try await fixture.stallCommits()
            let body = try fixture.body(fixture.event())
            async let response = try? Web.post(body, to: addresses.notifications)
            try await fixture.untilStalled()
            daemon.send("TERM")
            try await eventually("readiness to drop") {
                try await Web.get(addresses.operations + "/readyz").status == 503
            }
            daemon.send("TERM")
            #expect(try await daemon.end(within: .seconds(30)) == 1)
            #expect(daemon.log.last?.contains("ended immediately by a second signal") == true)
            let status = await response?.status
            #expect(status == nil)
            try await fixture.letCommit()
        }
    }
}
