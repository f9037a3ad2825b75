import AppleSimulator
import FoundationEssentials
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// The same with a spool, and with a server that is down for some time.
extension KillTests {
    @Test("With a spool, nothing is lost if the daemon is killed while it spools and while it drains the spool.")
    func nothingIsLostInTheSpool() async throws {
        var generator = SeededGenerator(seed: Self.seed)
        let outages = Self.isLong ? 15 : 2
        print("kill -9 with a spool: seed \(Self.seed), \(outages) outages")
        try await TemporaryDirectory.with { directory in
            let settings = ["SIWAD_SPOOL_DIRECTORY": directory.file("spool")]
            try await Self.withMigratedCluster { cluster, fixture in
                let histories = try RandomHistories(apple: fixture.apple, seed: Self.seed)
                try await histories.applySignIns(.before, on: fixture.connection)
                var daemon = fixture.start(settings)
                let load = LoadRun(to: [try await daemon.ready().notifications], next: histories.next)
                let progress = { (count: Int) in
                    let goal = load.acknowledged + count
                    try await eventually("\(goal) acknowledged notifications") { load.acknowledged >= goal }
                }
                let killDaemon = {
                    await daemon.kill()
                    daemon = fixture.start(settings)
                    load.redirect(to: [try await daemon.ready().notifications])
                }
                async let running: Void = load.run(connections: 24)
                for _ in 0..<outages {
                    try await progress(Int.random(in: 1...200, using: &generator))
                    try await cluster.kill()
                    try await progress(Int.random(in: 50...400, using: &generator))
                    if Bool.random(using: &generator) { try await killDaemon() }
                    try await progress(Int.random(in: 50...400, using: &generator))
                    try await cluster.start()
                    try await progress(Int.random(in: 1...100, using: &generator))
                    try await killDaemon()
                }
                try await progress(100)
                load.stop()
                try await running
                let metrics = try await daemon.ready().operations + "/metrics"
                try await eventually("the spool to be empty", within: .seconds(120)) {
                    try await Web.get(metrics).body.contains("siwad_spool_bytes 0\n")
                }
                daemon.send("TERM")
                #expect(try await daemon.end() == 0)
                try await Self.verify(histories, after: load.outcome, fixture)
                let spooled = try await Self.count("siwa.notifications WHERE source = 'spool'", fixture)
                #expect(spooled > 0, "no notification used the spool, so the test proves nothing")
            }
        }
    }

    @Test(
        "While the server is down at 500 notifications a second, each is answered 200, and stored soon after it is back."
    )
    func outage() async throws {
        let seconds = Self.isLong ? 60 : 3
        try await TemporaryDirectory.with { directory in
            try await Self.withMigratedCluster { cluster, fixture in
                let daemon = fixture.start(["SIWAD_SPOOL_DIRECTORY": directory.file("spool")])
                let addresses = try await daemon.ready()
                try await cluster.kill()
                let (answers, memory) = try await Self.post(500, for: seconds, fixture, addresses.notifications) {
                    try Self.residentKilobytes(of: try #require(daemon.processID))
                }
                #expect(answers.keys.sorted() == [200], "\(answers)")
                #expect(memory.last ?? 0 < (memory.first ?? 0) + 64 * 1_024, "memory in KiB: \(memory)")
                try await cluster.start()
                let start = ContinuousClock.now
                // The limit of thirty seconds applies to a release build.
                let limit = Binary.isRelease ? Duration.seconds(30) : .seconds(60 + 5 * seconds)
                try await eventually("the spool to be empty", within: limit) {
                    try await Web.get(addresses.operations + "/metrics").body.contains("siwad_spool_bytes 0\n")
                }
                print(
                    "outage: \(answers[200] ?? 0) spooled, stored \(ContinuousClock.now - start) later; KiB \(memory)"
                )
                let stored = try await Self.count("siwa.notifications", fixture)
                #expect(stored == Int64(500 * seconds))
            }
        }
    }

    /// The number of rows, over a new connection, since the fixture's was lost with the server.
    private static func count(_ rows: String, _ fixture: DaemonFixture) async throws -> Int64 {
        let connection = try await DaemonFixture.connect(fixture.conninfo)
        let count = try await connection.withSession { session throws(PostgresError) in
            try session.execute(Statement(once: "SELECT count(*) FROM \(rows)")).int64(0, 0)
        }
        await connection.close()
        return count
    }

    /// Posts notifications at a constant rate.
    ///
    /// - Returns: the number of responses by status, and the results of `measure` after each second.
    private static func post(
        _ rate: Int,
        for seconds: Int,
        _ fixture: DaemonFixture,
        _ url: String,
        measure: () throws -> Int
    ) async throws -> (answers: [Int: Int], measures: [Int]) {
        let start = ContinuousClock.now
        return try await withThrowingTaskGroup(of: Int.self) { group in
            var measures: [Int] = []
            for tick in 0..<seconds * 50 {
                try await Task.sleep(until: start + .milliseconds(20 * tick), clock: .continuous)
                for number in 0..<rate / 50 {
                    let body = try fixture.body(fixture.event(sub: "person \(number)"))
                    group.addTask { try await Web.post(body, to: url).status }
                }
                if tick % 50 == 49 { measures.append(try measure()) }
            }
            var answers: [Int: Int] = [:]
            for try await status in group { answers[status, default: 0] += 1 }
            return (answers, measures)
        }
    }

    /// Resident memory of a process (proc(5), VmRSS).
    private static func residentKilobytes(of process: Int32) throws -> Int {
        let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
        let line = status.split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
        return try #require(line?.split(whereSeparator: \.isWhitespace).dropFirst().first.flatMap { Int($0) })
    }
}
