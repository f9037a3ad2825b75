import Glibc
import TestSupport
import Testing

/// With a spool, nothing that the connection to PostgreSQL does makes an answer late.
@Suite("Answers with a spool", .timeLimit(.minutes(10)))
struct PromptAnswerTests {
    /// Posts an event and says what was answered, and after which time.
    private func post(_ id: String, _ scene: Scene, _ url: String) async throws -> (status: Int, time: Duration) {
        let body = try scene.body(scene.event(sub: "person \(id)", id: id))
        let start = ContinuousClock.now
        let status = try await Web.post(body, to: url).status
        return (status, .now - start)
    }

    private func expectStored(_ ids: [String], _ scene: Scene) async throws {
        try await eventually("\(ids) to be stored", within: .seconds(90)) {
            try await scene.texts("SELECT jti FROM siwa.notifications ORDER BY jti") == ids
        }
    }

    @Test("A server that no longer says a word holds no answer up for two seconds.")
    func blackHole() async throws {
        try await TemporaryDirectory.with { directory in
            try await Scene.with { scene in
                try await FaultyWire.with(before: scene.connection) { wire in
                    let settings = [
                        "SIWAD_DATABASE_URL": wire.conninfo(scene.conninfo),
                        "SIWAD_SPOOL_DIRECTORY": directory.file("spool"),
                    ]
                    try await scene.withDaemon(settings) { _, addresses in
                        #expect(try await post("a", scene, addresses.notifications).status == 200)
                        try await wire.now(.blackHole)
                        for id in ["b", "c", "d", "e"] {
                            let answer = try await post(id, scene, addresses.notifications)
                            #expect(answer.status == 200)
                            #expect(answer.time < .seconds(2), "\(id)")
                        }
                        try await wire.now(.pass)
                        try await expectStored(["a", "b", "c", "d", "e"], scene)
                    }
                }
            }
        }
    }

    @Test("A lock on everything holds no answer up for two seconds, and nothing is stored twice after it.")
    func lock() async throws {
        try await TemporaryDirectory.with { directory in
            try await Scene.withDaemon(["SIWAD_SPOOL_DIRECTORY": directory.file("spool")]) { scene, _, addresses in
                try await scene.stallCommits()
                for id in ["a", "b", "c"] {
                    let answer = try await post(id, scene, addresses.notifications)
                    #expect(answer.status == 200)
                    #expect(answer.time < .seconds(2), "\(id)")
                }
                try await scene.letCommit()
                try await expectStored(["a", "b", "c"], scene)
            }
        }
    }

    @Test(
        "A name server that swallows packets holds no answer up for two seconds.",
        .enabled(if: SilentNameServer.isPossible, "needs root, and a mount namespace for the daemon's own resolver")
    )
    func nameServer() async throws {
        let server = try SilentNameServer()
        try await TemporaryDirectory.with { directory in
            try await Scene.with { scene in
                try await FaultyWire.with(before: scene.connection) { wire in
                    let settings = [
                        "SIWAD_DATABASE_URL": "\(scene.conninfo) host=database.siwad.test port=\(wire.port)",
                        "SIWAD_SPOOL_DIRECTORY": directory.file("spool"),
                    ]
                    try server.know("database.siwad.test")
                    let daemon = scene.start(settings, under: server.command)
                    let addresses = try await daemon.ready()
                    #expect(try await post("a", scene, addresses.notifications).status == 200)
                    try server.forget()
                    try await wire.cut()
                    for id in ["b", "c", "d"] {
                        let answer = try await post(id, scene, addresses.notifications)
                        #expect(answer.status == 200)
                        #expect(answer.time < .seconds(2), "\(id) took \(answer.time)")
                    }
                    #expect(server.questions > 0, "no question came: the test has tested nothing")
                    try server.know("database.siwad.test")
                    try await expectStored(["a", "b", "c", "d"], scene)
                    daemon.send("TERM")
                    #expect(try await daemon.end() == 0)
                }
            }
        }
    }

    @Test(
        "A start with a name server that swallows packets takes notifications within seconds.",
        .enabled(if: SilentNameServer.isPossible, "needs root, and a mount namespace for the daemon's own resolver")
    )
    func startWithoutNames() async throws {
        let server = try SilentNameServer()
        try await TemporaryDirectory.with { directory in
            try await Scene.with { scene in
                try await FaultyWire.with(before: scene.connection) { wire in
                    let settings = [
                        "SIWAD_DATABASE_URL":
                            "\(scene.conninfo) host=database.siwad.test port=\(wire.port) connect_timeout=2",
                        "SIWAD_SPOOL_DIRECTORY": directory.file("spool"),
                    ]
                    let daemon = scene.start(settings, under: server.command)
                    // Two attempts of two seconds; an unbounded one takes the resolver's minute.
                    let addresses = try await daemon.ready(within: .seconds(12))
                    let answer = try await post("a", scene, addresses.notifications)
                    #expect(answer.status == 200)
                    #expect(answer.time < .seconds(2))
                    try server.know("database.siwad.test")
                    try await expectStored(["a"], scene)
                }
            }
        }
    }
}
