import FoundationEssentials
import StoreTestSupport
import TestSupport
import Testing

/// Runs only if `SIWAD_PREVIOUS` names a siwad with an earlier schema: `deploy/check-upgrade` builds one.
@Suite("Rolling upgrade", .timeLimit(.minutes(10)))
struct RollingUpgradeTests {
    static let previous = ProcessInfo.processInfo.environment["SIWAD_PREVIOUS"].flatMap { $0.isEmpty ? nil : $0 }

    @Test(
        "A migration and a restart of each daemon under load lose nothing, and behind a load balancer no request fails.",
        .enabled(if: previous != nil)
    )
    func nothingIsLost() async throws {
        let previous = try #require(Self.previous)
        try await MachineLock.withLock {
            try await TestDatabase.with { database in
                let variables = ["SIWAD_DATABASE_URL=\(database.conninfo)", "SIWAD_APPS=\(DaemonFixture.apps)"]
                let migrated = try await ChildProcess.run(["env"] + variables + [previous, "migrate"])
                try #require(migrated.isSuccess, "\(migrated.output)")
                try await DaemonFixture.with(database.conninfo) { fixture in
                    try await TemporaryDirectory.with { spools in try await upgrade(from: previous, fixture, spools) }
                }
            }
        }
    }

    private func upgrade(from previous: String, _ fixture: DaemonFixture, _ spools: TemporaryDirectory) async throws {
        func start(_ number: Int, _ command: [String] = []) async throws -> Daemon {
            let daemon = fixture.start(["SIWAD_SPOOL_DIRECTORY": spools.file("\(number)")], under: command)
            return Daemon(number: number, process: daemon, address: try await daemon.ready())
        }
        // The harness names the siwad under test, which this replaces.
        let old = ["/bin/sh", "-c", "shift; exec \"$0\" \"$@\"", previous]
        var daemons = [try await start(0, old), try await start(1, old)]
        let histories = try RandomHistories(apple: fixture.apple, seed: KillTests.seed)
        try await histories.applySignIns(.before, on: fixture.connection)
        let load = LoadRun(to: daemons.map(\.address.notifications), balancing: true, next: histories.next)
        async let running: Void = load.run(connections: 16)
        try await progress(of: load, "before the migration")

        let settings = fixture.environment()
        #expect(try await siwad(["migrate", "status"], environment: settings).status == 1)
        let migration = try await siwad(["migrate"], environment: settings)
        #expect(migration.status == 0, "\(migration.errors)")
        try await progress(of: load, "after the migration")
        for _ in 0..<2 {
            let daemon = daemons.removeFirst()
            // Like a load balancer, which polls readiness: siwad waits until a client that polls it has noticed.
            let readiness = daemon.address.operations + "/readyz"
            #expect(try await Web.get(readiness).status == 200)
            daemon.process.send("TERM")
            try await eventually("readiness to drop") { try await Web.get(readiness).status == 503 }
            load.redirect(to: daemons.map(\.address.notifications))
            #expect(try await daemon.process.end() == 0)
            daemons.append(try await start(daemon.number))
            load.redirect(to: daemons.map(\.address.notifications))
            try await progress(of: load, "after a restart")
        }
        load.stop()
        try await running
        for daemon in daemons {
            daemon.process.send("TERM")
            #expect(try await daemon.process.end() == 0)
        }
        try await verify(histories, after: load.outcome, fixture)
    }

    private func verify(_ histories: RandomHistories, after outcome: LoadRun.Outcome, _ fixture: DaemonFixture)
        async throws
    {
        try await histories.applySignIns(.after, on: fixture.connection)
        let findings = try await histories.findings(after: outcome, on: fixture.connection)
        #expect(findings.isEmpty, "seed \(KillTests.seed), \(findings.count) findings: \(findings.prefix(5))")
        #expect(outcome.acknowledged.union(outcome.refused.keys) == outcome.sent)
        #expect(outcome.unavailable.isEmpty, "\(outcome.unavailable)")
        #expect(outcome.unanswered.isEmpty, "\(outcome.unanswered)")
        let doctor = try await siwad(["doctor", "--json"], environment: fixture.environment())
        let objects = doctor.lines.first { $0.contains("\"objects\"") }
        #expect(objects?.contains("\"pass\"") == true, "\(objects ?? "no finding about objects")")
        print("rolling upgrade: \(outcome.acknowledged.count) acknowledged, \(outcome.redirected) redirected")
    }

    private func progress(of load: LoadRun, _ phase: String) async throws {
        let goal = load.acknowledged + 200
        try await eventually("progress \(phase)") { load.acknowledged >= goal }
    }

    private struct Daemon {
        let number: Int
        let process: DaemonProcess
        let address: DaemonProcess.Addresses
    }
}
