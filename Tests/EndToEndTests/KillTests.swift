import FoundationEssentials
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("kill -9 under load", .timeLimit(.minutes(15)))
struct KillTests {
    /// The process to kill.
    private enum Victim { case daemon, server }

    /// `SIWAD_FAULTS=long` kills 50 daemons and 20 servers in one run, otherwise a few.
    static let isLong = LongVariants.areWanted
    /// `SIWAD_SEED` repeats the same histories.
    static let seed =
        ProcessInfo.processInfo.environment["SIWAD_SEED"].flatMap { UInt64($0) } ?? UInt64.random(in: 0...9_999_999)

    @Test("Whatever is killed at any time, each acknowledged notification is stored once, with all of its effects.")
    func nothingIsLost() async throws {
        var generator = SeededGenerator(seed: Self.seed)
        let (daemons, servers) = Self.isLong ? (50, 20) : (8, 3)
        print("kill -9: seed \(Self.seed), \(daemons) daemons, \(servers) servers")
        let victims = (Array(repeating: Victim.daemon, count: daemons) + Array(repeating: .server, count: servers))
            .shuffled(using: &generator)
        try await Self.withMigratedCluster { cluster, fixture in
            let histories = try RandomHistories(apple: fixture.apple, seed: Self.seed)
            try await histories.applySignIns(.before, on: fixture.connection)
            var daemon = fixture.start()
            let load = LoadRun(to: [try await daemon.ready().notifications], next: histories.next)
            async let running: Void = load.run(connections: 24)
            for victim in victims {
                let goal = load.acknowledged + Int.random(in: 1...300, using: &generator)
                try await eventually("\(goal) acknowledged notifications") { load.acknowledged >= goal }
                switch victim {
                case .daemon:
                    await daemon.kill()
                    daemon = fixture.start()
                    load.redirect(to: [try await daemon.ready().notifications])
                case .server:
                    try await cluster.kill()
                    try await cluster.start()
                }
            }
            let goal = load.acknowledged + 100
            try await eventually("the service to go on") { load.acknowledged >= goal }
            load.stop()
            try await running
            daemon.send("TERM")
            #expect(try await daemon.end() == 0)
            try await Self.verify(histories, after: load.outcome, fixture)
        }
    }

    /// Expects that the database has exactly the state that follows from the responses.
    static func verify(_ histories: RandomHistories, after outcome: LoadRun.Outcome, _ fixture: DaemonFixture)
        async throws
    {
        let connection = try await DaemonFixture.connect(fixture.conninfo)
        try await histories.applySignIns(.after, on: connection)
        let findings = try await histories.findings(after: outcome, on: connection)
        await connection.close()
        let unanswered = outcome.unanswered.values.reduce(0, +)
        let unavailable = outcome.unavailable.values.reduce(0, +)
        print(
            "kill -9: \(outcome.acknowledged.count) acknowledged, \(outcome.refused.count) refused,"
                + " \(unavailable) times unavailable, \(unanswered) times no response"
        )
        #expect(findings.isEmpty, "seed \(seed), \(findings.count) findings: \(findings.prefix(5))")
        #expect(!outcome.refused.isEmpty)
    }

    /// Runs `body` with a private durable server that has the schema.
    static func withMigratedCluster(_ body: (PrivateCluster, DaemonFixture) async throws -> Void) async throws {
        try await MachineLock.withLock { try await PrivateCluster.withMigrated(body) }
    }
}
