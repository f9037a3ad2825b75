import FoundationEssentials
import Postgres
import StoreTestSupport
import Testing

@Suite("kill -9 under load", .timeLimit(.minutes(15)))
struct KillTests {
    /// What is killed.
    private enum Victim { case daemon, server }

    /// `SIWAD_FAULTS=long` kills 50 daemons and 20 servers in one run, anything else a few.
    static let isLong = ProcessInfo.processInfo.environment["SIWAD_FAULTS"] == "long"
    /// `SIWAD_SEED` plays the same again, as far as processes can be made to.
    static let seed =
        ProcessInfo.processInfo.environment["SIWAD_SEED"].flatMap { UInt64($0) } ?? UInt64.random(in: 0...9_999_999)

    @Test("Whatever dies at whatever moment: all that was acknowledged is there, once, with all that follows from it.")
    func nothingIsLost() async throws {
        var generator = SeededGenerator(seed: Self.seed)
        let (daemons, servers) = Self.isLong ? (50, 20) : (8, 3)
        print("kill -9: seed \(Self.seed), \(daemons) daemons, \(servers) servers")
        let victims = (Array(repeating: Victim.daemon, count: daemons) + Array(repeating: .server, count: servers))
            .shuffled(using: &generator)
        try await Self.withMigratedCluster { cluster, scene in
            let campaign = try Campaign(apple: scene.apple, seed: Self.seed)
            try await campaign.tellApplication(.before, on: scene.connection)
            var daemon = scene.start()
            let load = Load(to: [try await daemon.ready().notifications], next: campaign.next)
            async let running: Void = load.run(connections: 24)
            for victim in victims {
                let goal = load.acknowledged + Int.random(in: 1...300, using: &generator)
                try await eventually("\(goal) acknowledged notifications") { load.acknowledged >= goal }
                switch victim {
                case .daemon:
                    await daemon.kill()
                    daemon = scene.start()
                    load.turn(to: [try await daemon.ready().notifications])
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
            try await Self.judge(campaign, after: load.outcome, scene)
        }
    }

    /// What is in the database is what must follow from what was answered.
    static func judge(_ campaign: Campaign, after outcome: Load.Outcome, _ scene: Scene) async throws {
        let connection = try await Scene.connect(scene.conninfo)
        try await campaign.tellApplication(.after, on: connection)
        let findings = try await campaign.findings(after: outcome, on: connection)
        await connection.close()
        let unanswered = outcome.unanswered.values.reduce(0, +)
        let unavailable = outcome.unavailable.values.reduce(0, +)
        print(
            "kill -9: \(outcome.acknowledged.count) acknowledged, \(outcome.refused.count) refused,"
                + " \(unavailable) times unavailable, \(unanswered) times no answer"
        )
        #expect(findings.isEmpty, "seed \(seed), \(findings.count) findings: \(findings.prefix(5))")
        #expect(!outcome.refused.isEmpty)
    }

    /// Runs `body` with a durable server of its own in which the schema is.
    static func withMigratedCluster(_ body: (PrivateCluster, Scene) async throws -> Void) async throws {
        try await Turn.take {
            try await PrivateCluster.with { cluster in
                let connection = try await Scene.connect(cluster.conninfo())
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(script: "CREATE DATABASE siwa")
                }
                await connection.close()
                let conninfo = cluster.conninfo(database: "siwa")
                let settings = ["SIWAD_DATABASE_URL": conninfo, "SIWAD_APPS": Scene.apps]
                #expect(try await siwad(["migrate"], environment: settings).status == 0)
                // The clients of the apps, which the application's sign-ins need, are there after the first start.
                try await Scene.with(conninfo) { scene in
                    try await scene.withDaemon { _, _ in }
                    try await body(cluster, scene)
                }
            }
        }
    }
}
