import AppleSimulator
import TestSupport
import Testing

@Suite("SIWAD_DATABASE_CONNECTIONS", .timeLimit(.minutes(10)))
struct DatabaseConnectionTests {
    /// Runs a test with a daemon whose role may have as many connections as it is told to use, and not one more.
    private func withDaemon(
        connections: Int,
        _ settings: [String: String] = [:],
        _ body: (Scene, DaemonProcess, DaemonProcess.Addresses) async throws -> Void
    ) async throws {
        try await Scene.with { scene in
            let role = "limited_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await scene.run("CREATE ROLE \(role) LOGIN IN ROLE siwad_daemon CONNECTION LIMIT \(connections)")
            var settings = settings
            settings["SIWAD_DATABASE_URL"] = "\(scene.conninfo) user=\(role)"
            settings["SIWAD_DATABASE_CONNECTIONS"] = "\(connections)"
            try await scene.withDaemon(settings) { daemon, addresses in try await body(scene, daemon, addresses) }
            try await eventually("the daemon's connections to end") {
                try await scene.texts("SELECT pid::text FROM pg_stat_activity WHERE usename = '\(role)'").isEmpty
            }
            try await scene.run("DROP ROLE \(role)")
        }
    }

    /// Uses all that the daemon needs connections for.
    private func use(_ scene: Scene, _ addresses: DaemonProcess.Addresses) async throws {
        try await eventually("maintenance") {
            try await scene.texts("SELECT task FROM siwa.maintenance").count == 4
        }
        for _ in 0..<5 {
            #expect(try await Web.post(scene.body(scene.event()), to: addresses.notifications).status == 200)
            #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
        }
        #expect(try await scene.texts("SELECT count(*)::text FROM siwa.notifications") == ["5"])
    }

    @Test("Two are enough without a spool, and there are never more.")
    func two() async throws {
        try await withDaemon(connections: 2) { scene, daemon, addresses in
            try await use(scene, addresses)
            #expect(!daemon.log.contains { $0.contains("too many connections") })
        }
    }

    @Test("Three are enough with a spool, and there are never more, also while the spool is emptied.")
    func three() async throws {
        let directory = try TemporaryDirectory()
        let spool = ["SIWAD_SPOOL_DIRECTORY": directory.file("spool"), "SIWAD_BATCH_LIMIT": "1"]
        try await withDaemon(connections: 3, spool) { scene, daemon, addresses in
            try await use(scene, addresses)
            try await scene.closeDatabase()
            for _ in 0..<5 {
                #expect(try await Web.post(scene.body(scene.event()), to: addresses.notifications).status == 200)
            }
            try await scene.openDatabase()
            try await eventually("the spool to be emptied") {
                try await scene.texts("SELECT count(*)::text FROM siwa.notifications") == ["10"]
            }
            #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
            #expect(!daemon.log.contains { $0.contains("too many connections") })
        }
    }
}
