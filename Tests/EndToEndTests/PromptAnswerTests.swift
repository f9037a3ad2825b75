import Glibc
import TestSupport
import Testing

@Suite("Response times with a spool", .timeLimit(.minutes(10)))
struct PromptAnswerTests {
    /// Posts an event, and returns the status and the time that the response took.
    private func post(_ id: String, _ fixture: DaemonFixture, _ url: String) async throws -> (
        status: Int, time: Duration
    ) {
        let body = try fixture.body(fixture.event(sub: "person \(id)", id: id))
        let start = ContinuousClock.now
        let status = try await Web.post(body, to: url).status
        return (status, .now - start)
    }

    private func expectStored(_ ids: [String], _ fixture: DaemonFixture) async throws {
        try await eventually("\(ids) to be stored", within: .seconds(90)) {
            try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY jti") == ids
        }
    }

    @Test("With a silent PostgreSQL server, every response takes less than two seconds.")
    func blackHole() async throws {
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.with { fixture in
                try await FaultyProxy.with(before: fixture.connection) { proxy in
                    let settings = [
                        "SIWAD_DATABASE_URL": proxy.conninfo(fixture.conninfo),
                        "SIWAD_SPOOL_DIRECTORY": directory.file("spool"),
                    ]
                    try await fixture.withDaemon(settings) { _, addresses in
                        #expect(try await post("a", fixture, addresses.notifications).status == 200)
                        try await proxy.now(.holdEverything)
                        for id in ["b", "c", "d", "e"] {
                            let response = try await post(id, fixture, addresses.notifications)
                            #expect(response.status == 200)
                            #expect(response.time < .seconds(2), "\(id)")
                        }
                        try await proxy.now(.pass)
                        try await expectStored(["a", "b", "c", "d", "e"], fixture)
                    }
                }
            }
        }
    }

    @Test("With all tables locked, every response takes less than two seconds, and nothing is stored twice.")
    func lock() async throws {
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.withDaemon(["SIWAD_SPOOL_DIRECTORY": directory.file("spool")]) {
                fixture,
                _,
                addresses in
                try await fixture.stallCommits()
                for id in ["a", "b", "c"] {
                    let response = try await post(id, fixture, addresses.notifications)
                    #expect(response.status == 200)
                    #expect(response.time < .seconds(2), "\(id)")
                }
                try await fixture.letCommit()
                try await expectStored(["a", "b", "c"], fixture)
            }
        }
    }

    @Test(
        "With a silent name server, every response takes less than two seconds.",
        .enabled(if: SilentNameServer.isPossible, "needs root, and a mount namespace for the daemon's own resolver")
    )
    func nameServer() async throws {
        let server = try SilentNameServer()
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.with { fixture in
                try await FaultyProxy.with(before: fixture.connection) { proxy in
                    let settings = [
                        "SIWAD_DATABASE_URL": "\(fixture.conninfo) host=database.siwad.test port=\(proxy.port)",
                        "SIWAD_SPOOL_DIRECTORY": directory.file("spool"),
                    ]
                    try server.know("database.siwad.test")
                    let daemon = fixture.start(settings, under: server.command)
                    let addresses = try await daemon.ready()
                    #expect(try await post("a", fixture, addresses.notifications).status == 200)
                    try server.forget()
                    try await proxy.cut()
                    for id in ["b", "c", "d"] {
                        let response = try await post(id, fixture, addresses.notifications)
                        #expect(response.status == 200)
                        #expect(response.time < .seconds(2), "\(id) took \(response.time)")
                    }
                    #expect(server.questions > 0, "the name server got no question, so the test proves nothing")
                    try server.know("database.siwad.test")
                    try await expectStored(["a", "b", "c", "d"], fixture)
                    daemon.send("TERM")
                    #expect(try await daemon.end() == 0)
                }
            }
        }
    }

    @Test(
        "With a silent name server, a daemon that starts accepts notifications within seconds.",
        .enabled(if: SilentNameServer.isPossible, "needs root, and a mount namespace for the daemon's own resolver")
    )
    func startWithoutNames() async throws {
        let server = try SilentNameServer()
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.with { fixture in
                try await FaultyProxy.with(before: fixture.connection) { proxy in
                    let settings = [
                        "SIWAD_DATABASE_URL":
                            "\(fixture.conninfo) host=database.siwad.test port=\(proxy.port) connect_timeout=2",
                        "SIWAD_SPOOL_DIRECTORY": directory.file("spool"),
                    ]
                    let daemon = fixture.start(settings, under: server.command)
                    // Two attempts of two seconds; without a limit, the resolver would take a minute.
                    let addresses = try await daemon.ready(within: .seconds(12))
                    let response = try await post("a", fixture, addresses.notifications)
                    #expect(response.status == 200)
                    #expect(response.time < .seconds(2))
                    try server.know("database.siwad.test")
                    try await expectStored(["a"], fixture)
                }
            }
        }
    }
}
