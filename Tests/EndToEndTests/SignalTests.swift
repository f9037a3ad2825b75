import AppleSimulator
import Foundation
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Signals to the daemon", .timeLimit(.minutes(10)))
struct SignalTests {
    private static let one = "AAAAAAAAAA/com.example.one"

    @Test("SIGHUP: other apps take effect without a restart; a file that makes no sense changes nothing and is named.")
    func reload() async throws {
        try await Scene.with { scene in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                // The environment would win over the file.
                let daemon = scene.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                let addresses = try await daemon.ready()
                let post = { (id: String) in
                    try await Web.post(
                        scene.body(scene.event("consent-revoked", app: "com.example.two", id: id)),
                        to: addresses.notifications
                    ).status
                }
                #expect(try await post("early") == 200)
                #expect(try await scene.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])

                _ = try directory.write("siwad.yaml", "apps: \(Self.one),AAAAAAAAAA/com.example.two+com.example.web\n")
                daemon.send("HUP")
                try await eventually("the configuration to be read anew") {
                    daemon.log.contains { $0.contains("\"configuration re-read\"") }
                }
                #expect(try await post("after") == 200)
                #expect(try await scene.texts("SELECT jti FROM siwa.notifications") == ["after"])
                let client = "SELECT team_id FROM siwa.clients WHERE client_id = 'com.example.web'"
                #expect(try await scene.texts(client) == ["AAAAAAAAAA"])
                // Measured after the answer.
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
                let stored = try await scene.texts("SELECT jti FROM siwa.notifications ORDER BY jti")
                #expect(stored == ["after", "still"])
                #expect(daemon.status == nil)
            }
        }
    }

    @Test("SIGHUP: a log level that is no longer set is the default one again.")
    func logLevel() async throws {
        try await Scene.with { scene in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                let daemon = scene.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                let apps = "apps: \(Self.one),AAAAAAAAAA/com.example.two\n"
                _ = try directory.write("siwad.yaml", apps + "log_level: error\n")
                daemon.send("HUP")
                try await eventually("the new app") {
                    try await scene.texts("SELECT client_id FROM siwa.clients").contains("com.example.two")
                }
                _ = try directory.write("siwad.yaml", apps)
                daemon.send("HUP")
                try await eventually("the line that nobody saw before") {
                    daemon.log.contains { $0.contains("\"configuration re-read\"") }
                }
            }
        }
    }

    @Test("SIGHUP during the start ends nothing.")
    func earlyReload() async throws {
        try await Scene.with { scene in
            let silent = try SilentServer()
            let daemon = scene.start(["SIWAD_DATABASE_URL": "host=127.0.0.1 port=\(silent.port) connect_timeout=5"])
            try await eventually("the signal to be followed") {
                guard let process = daemon.processID else { return false }
                // Which signals have handlers (proc(5), `SigCgt`).
                let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
                let caught = status.split(separator: "\n").first { $0.hasPrefix("SigCgt:") }?.dropFirst(8)
                return (UInt64(caught ?? "", radix: 16) ?? 0) & 1 << UInt64(SIGHUP - 1) != 0
            }
            daemon.send("HUP")
            #expect(try await daemon.end() == 69)
        }
    }

    @Test("SIGINT during the start ends it at once, also while somebody's lock holds it up.")
    func earlyInterruption() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await Scene.with(database.conninfo) { scene in
                let daemon = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE siwa.clients IN ACCESS EXCLUSIVE MODE")
                } _: {
                    let daemon = scene.start()
                    try await eventually("the daemon to wait for the lock") {
                        try await scene.texts(
                            "SELECT 1::text FROM pg_locks WHERE relation = 'siwa.clients'::regclass AND NOT granted"
                        ).isEmpty == false
                    }
                    daemon.send("INT")
                    // Before it would give up waiting for the lock.
                    #expect(try await daemon.end(within: .seconds(8)) == 0)
                    return daemon
                }
                #expect(daemon.status == 0)
            }
        }
    }

    @Test("A second SIGTERM ends the daemon at once, whatever is under way, and nobody was told 200.")
    func secondTermination() async throws {
        try await Scene.withDaemon(["SIWAD_SHUTDOWN_GRACE": "10m"]) { scene, daemon, addresses in
            try await scene.stallCommits()
            let body = try scene.body(scene.event())
            async let answer = try? Web.post(body, to: addresses.notifications)
            try await scene.untilStalled()
            daemon.send("TERM")
            try await eventually("readiness to drop") {
                try await Web.get(addresses.operations + "/readyz").status == 503
            }
            daemon.send("TERM")
            #expect(try await daemon.end(within: .seconds(30)) == 1)
            #expect(daemon.log.last?.contains("ended immediately by a second signal") == true)
            let status = await answer?.status
            #expect(status == nil)
            try await scene.letCommit()
        }
    }
}
