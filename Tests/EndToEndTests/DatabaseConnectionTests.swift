import AppleSimulator
import TestSupport
import Testing

@Suite("SIWAD_DATABASE_CONNECTIONS", .timeLimit(.minutes(10)))
struct DatabaseConnectionTests {
    /// Runs a test with a daemon whose role may have exactly SIWAD_DATABASE_CONNECTIONS connections.
    private func withDaemon(
        connections: Int,
        _ settings: [String: String] = [:],
        _ body: (DaemonFixture, DaemonProcess, DaemonProcess.Addresses, _ role: String) async throws -> Void
    ) async throws {
        try await DaemonFixture.with { fixture in
            let role = "limited_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(role) LOGIN IN ROLE siwad_daemon CONNECTION LIMIT \(connections)")
            var settings = settings
            settings["SIWAD_DATABASE_URL"] = "\(fixture.conninfo) user=\(role)"
            settings["SIWAD_DATABASE_CONNECTIONS"] = "\(connections)"
            try await fixture.withDaemon(settings) { daemon, addresses in
                try await body(fixture, daemon, addresses, role)
            }
            try await eventually("the daemon's connections to end") {
                try await fixture.texts("SELECT pid::text FROM pg_stat_activity WHERE usename = '\(role)'").isEmpty
            }
            try await fixture.run("DROP ROLE \(role)")
        }
    }

    private func post(_ fixture: DaemonFixture, _ addresses: DaemonProcess.Addresses) async throws {
        for _ in 0..<5 {
            #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
            let readiness = try await Web.get(addresses.operations + "/readyz?verbose")
            #expect(readiness.status == 200, "\(readiness.body)")
        }
    }

    /// Uses every feature of the daemon that needs a connection.
    private func use(_ fixture: DaemonFixture, _ addresses: DaemonProcess.Addresses) async throws {
        try await eventually("maintenance") {
            try await fixture.texts("SELECT task FROM siwa.maintenance").count == 7
        }
        try await post(fixture, addresses)
        #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["5"])
    }

    @Test("Two connections are enough without a spool, and siwad never opens more.")
    func two() async throws {
        try await withDaemon(connections: 2) { fixture, daemon, addresses, _ in
            try await use(fixture, addresses)
            #expect(!daemon.log.contains { $0.contains("too many connections") })
        }
    }

    @Test("A daemon that can store is ready although PostgreSQL accepts none of its other connections, and says so.")
    func refused() async throws {
        try await withRefusedConnections("CONNECTION LIMIT 1") { fixture, addresses in
            try await post(fixture, addresses)
        }
    }

    @Test("A daemon whose role may no longer log in stores with the connection that it has, and says so.")
    func forbidden() async throws {
        try await withRefusedConnections("NOLOGIN") { fixture, addresses in
            let response = try await Web.post(fixture.body(fixture.event()), to: addresses.notifications)
            #expect(response.status == 200)
        }
    }

    /// Leaves the daemon the connection that stores notifications, changes its role so that it gets no other one, and expects
    /// what tells that changes may wait for their publication.
    private func withRefusedConnections(
        _ change: String,
        _ body: (DaemonFixture, DaemonProcess.Addresses) async throws -> Void
    ) async throws {
        try await withDaemon(connections: 8) { fixture, daemon, addresses, role in
            try await post(fixture, addresses)
            try await fixture.run(
                """
                ALTER ROLE \(role) \(change);
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE usename = '\(role)' AND query NOT LIKE '-- Records a batch of notifications%'
                """
            )
            try await body(fixture, addresses)
            try await eventually("the warning") { daemon.log.contains { $0.contains("changes can't be published") } }
            try await eventually("the age to grow") {
                try await MetricSamples(addresses)["siwad_publication_age_seconds"] ?? 0 > 0
            }
        }
    }

    @Test("Three connections are enough with a spool, and siwad never opens more, even while it drains the spool.")
    func three() async throws {
        let directory = try TemporaryDirectory()
        let spool = ["SIWAD_SPOOL_DIRECTORY": directory.file("spool"), "SIWAD_BATCH_LIMIT": "1"]
        try await withDaemon(connections: 3, spool) { fixture, daemon, addresses, _ in
            try await use(fixture, addresses)
            try await fixture.closeDatabase()
            for _ in 0..<5 {
                #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
            }
            try await fixture.openDatabase()
            try await eventually("the spool to be drained") {
                try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["10"]
            }
            let readiness = try await Web.get(addresses.operations + "/readyz?verbose")
            #expect(readiness.status == 200, "\(readiness.body)")
            #expect(!daemon.log.contains { $0.contains("too many connections") })
        }
    }
}
