import AppleSimulator
import FoundationEssentials
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("The daemon as a service of systemd", .timeLimit(.minutes(10)))
struct SystemdTests {
    @Test("Start, readiness, reload and shutdown are reported in this order.", arguments: [false, true])
    func lifecycle(isAbstract: Bool) async throws {
        let systemd = try NotifySocket(isAbstract: isAbstract)
        try await DaemonFixture.withDaemon(["NOTIFY_SOCKET": systemd.name]) { _, daemon, _ in
            try await eventually("the end of the start") { systemd.assignments.contains("READY=1") }
            #expect(systemd.assignments == ["READY=1", "STATUS=accepting notifications"])
            daemon.send("HUP")
            try await eventually("the end of the reload") {
                systemd.assignments.drop { $0 != "RELOADING=1" }.contains("READY=1")
            }
            let reload = systemd.assignments.drop { $0 != "RELOADING=1" }.prefix(3)
            #expect(reload.dropFirst().first?.wholeMatch(of: /MONOTONIC_USEC=[0-9]+/) != nil)
            daemon.send("TERM")
            #expect(try await daemon.end() == 0)
            #expect(systemd.assignments.suffix(2) == ["STOPPING=1", "STATUS=shutting down"])
            #expect(!systemd.assignments.contains { $0.hasPrefix("WATCHDOG") })
        }
    }

    @Test("A reload that waits for PostgreSQL is not reported as ended by the status that follows every five seconds.")
    func slowReload() async throws {
        let systemd = try NotifySocket()
        let reload = { systemd.assignments.drop { $0 != "RELOADING=1" } }
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                let daemon = fixture.start(["NOTIFY_SOCKET": systemd.name])
                try await eventually("the end of the start") { systemd.assignments.contains("READY=1") }
                try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE siwa.clients IN ACCESS EXCLUSIVE MODE")
                } _: {
                    daemon.send("HUP")
                    try await eventually("a status during the reload") {
                        reload().contains { $0.hasPrefix("STATUS=") }
                    }
                    #expect(!reload().contains("READY=1"))
                }
                try await eventually("the end of the reload") { reload().contains("READY=1") }
            }
        }
    }

    @Test("Without keys the start ends too, and the status names what is missing until it is there.")
    func unready() async throws {
        let systemd = try NotifySocket()
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let keys = directory.file("keys.json")
                let daemon = fixture.start([
                    "NOTIFY_SOCKET": systemd.name, "SIWAD_KEYS_URL": "file://\(keys)", "SIWAD_KEYS_REFRESH": "100ms",
                ])
                try await eventually("the end of the start") { systemd.assignments.contains("READY=1") }
                let status = try #require(systemd.status)
                #expect(status.hasPrefix("answering 503: keys: no trusted key set"))
                #expect(daemon.status == nil)
                _ = try directory.write("keys.json", fixture.apple.keySetJSON)
                try await eventually("the keys") { systemd.status == "accepting notifications" }
            }
        }
    }

    @Test("The status says that PostgreSQL is unavailable, and the watchdog is served nevertheless.")
    func watchdog() async throws {
        let systemd = try NotifySocket()
        let settings = ["NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "200000"]
        try await DaemonFixture.withDaemon(settings) { fixture, daemon, _ in
            try await fixture.closeDatabase()
            try await eventually("the status") { systemd.status?.hasPrefix("answering 503: database: ") == true }
            let before = systemd.assignments.count { $0 == "WATCHDOG=1" }
            #expect(before > 0)
            try await eventually("more signs of life") {
                systemd.assignments.count { $0 == "WATCHDOG=1" } > before + 3
            }
            try await fixture.openDatabase()
            try await eventually("the database") { systemd.status == "accepting notifications" }
            #expect(daemon.status == nil)
        }
    }

    @Test("The signs of life are for the process that the watchdog observes.")
    func watchdogOfAnother() async throws {
        let systemd = try NotifySocket()
        let settings = ["NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"]
        try await DaemonFixture.withDaemon(settings) { _, daemon, _ in
            daemon.send("TERM")
            let status = try await daemon.end()
            #expect(status == 0)
            #expect(systemd.assignments.contains("READY=1") && !systemd.assignments.contains("WATCHDOG=1"))
        }
    }

    @Test("A socket that nothing reads does not disturb the daemon.")
    func deaf() async throws {
        for name in ["/nowhere/notify", "relative", "/" + String(repeating: "a", count: 200), "vsock:2:1"] {
            let settings = ["NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000"]
            try await DaemonFixture.withDaemon(settings) { fixture, _, addresses in
                let body = try fixture.body(fixture.event())
                #expect(try await Web.post(body, to: addresses.notifications).status == 200)
            }
        }
    }

    @Test("The connection string comes from the credential database-url.")
    func credential() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                _ = try directory.write("database-url", fixture.conninfo + "\n")
                let settings = ["SIWAD_DATABASE_URL": "", "CREDENTIALS_DIRECTORY": directory.path]
                try await fixture.withDaemon(settings) { _, addresses in
                    let body = try fixture.body(fixture.event())
                    #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                }
            }
        }
    }
}
