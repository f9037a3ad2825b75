import AppleSimulator
import FoundationEssentials
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Start of the daemon", .timeLimit(.minutes(10)))
struct StartTests {
    @Test("On an empty database it is ready half a second after its start, and uses less than 40 MB when idle.")
    func quickAndSmall() async throws {
        try await DaemonFixture.with { fixture in
            // Other tests share the machine, so the best of a few starts counts.
            var best = Duration.seconds(60)
            var memory = Int.max
            for attempt in 0..<60 where attempt < 3 || best > .milliseconds(500) {
                let start = ContinuousClock.now
                try await fixture.withDaemon { daemon, addresses in
                    best = min(best, .now - start)
                    #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
                    memory = min(memory, try residentKilobytes(of: try #require(daemon.processID)))
                }
            }
            print("start to ready: \(best), idle: \(memory) kB, \(Binary.isRelease ? "release" : "debug")")
            #expect(best < .milliseconds(500))
            // The limits apply to a release build, which SIWAD_BINARY names.
            if Binary.isRelease { #expect(memory < 40_000) }
        }
    }

    @Test("With stored keys of an earlier run it verifies while Apple's endpoint is unreachable.")
    func keptKeys() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.withDaemon { _, addresses async throws in
                #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
            }
            #expect(try await fixture.texts("SELECT kid FROM siwa.signing_keys") == [fixture.apple.keyID])
            fixture.endpoint.now(.silence)
            try await fixture.withDaemon { _, addresses async throws in
                #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
                let ready = try await Web.get(addresses.operations + "/readyz?verbose").body
                #expect(ready.contains("kept from an earlier run"), "\(ready)")
            }
        }
    }

    @Test("Without any key it is not ready, until it has fetched the key set.")
    func noKeys() async throws {
        try await DaemonFixture.with { fixture in
            fixture.endpoint.now(.status(503))
            let daemon = DaemonProcess(environment: fixture.environment())
            try await eventually("the daemon to say what is missing") {
                daemon.log.contains { $0.contains("key set could not be fetched") }
            }
            #expect(!daemon.log.contains { $0.contains("\"ready\"") })
            fixture.endpoint.now(.keySet(fixture.apple.keySetJSON))
            let addresses = try await daemon.ready()
            #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
            await daemon.kill()
        }
    }

    @Test("Once it is ready, the clients of SIWAD_APPS are in the database, also after a later start with other apps.")
    func clients() async throws {
        try await DaemonFixture.with { fixture in
            let apps = "AAAAAAAAAA/com.example.one,CCCCCCCCCC/com.example.three+com.example.three.web"
            try await fixture.withDaemon(["SIWAD_APPS": apps]) { _, _ in
                let clients = try await fixture.texts(
                    "SELECT client_id FROM siwa.clients WHERE team_id = 'CCCCCCCCCC' ORDER BY client_id"
                )
                #expect(clients == ["com.example.three", "com.example.three.web"])
            }
        }
    }

    @Test("With a spool, notifications don't wait for the apps to be written to a database that hangs.")
    func hangingDatabase() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                let directory = try TemporaryDirectory()
                let apps = "CCCCCCCCCC/com.example.late"
                let settings = ["SIWAD_SPOOL_DIRECTORY": directory.file("spool"), "SIWAD_APPS": apps]
                let body = try fixture.body(fixture.event(app: "com.example.late"))
                try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE siwa.clients IN ACCESS EXCLUSIVE MODE")
                } _: {
                    let start = ContinuousClock.now
                    let addresses = try await fixture.start(settings).ready()
                    #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                    // A lock is waited for during ten seconds, a connection that hangs for longer.
                    #expect(ContinuousClock.now - start < .seconds(8))
                }
                try await eventually("the app and the notification to be stored") {
                    let late = "SELECT client_id FROM siwa.clients WHERE team_id = 'CCCCCCCCCC'"
                    let stored = try await fixture.texts("\(late) UNION ALL SELECT source FROM siwa.notifications")
                    return stored == ["com.example.late", "spool"]
                }
            }
        }
    }

    @Test("Two daemons with different SIWAD_APPS keep each other's clients, and only clients remove takes one out.")
    func clientsOfTwoDaemons() async throws {
        try await DaemonFixture.with { fixture in
            let clients = "SELECT client_id FROM siwa.clients WHERE client_id LIKE 'com.example.n%' ORDER BY 1"
            try await fixture.withDaemon(["SIWAD_APPS": "CCCCCCCCCC/com.example.north"]) { _, first in
                try await fixture.withDaemon(["SIWAD_APPS": "CCCCCCCCCC/com.example.next"]) { _, second in
                    #expect(try await fixture.texts(clients) == ["com.example.next", "com.example.north"])
                    // Both serve their own app.
                    let north = try fixture.body(fixture.event(app: "com.example.north"))
                    let next = try fixture.body(fixture.event(app: "com.example.next"))
                    #expect(try await Web.post(north, to: first.notifications).status == 200)
                    #expect(try await Web.post(next, to: second.notifications).status == 200)
                }
            }
            let arguments = ["clients", "remove", "com.example.next", "com.example.none", "--note", "sold", "--json"]
            let removal = try await siwad(arguments, environment: fixture.environment())
            #expect(removal.output == #"{"client_id":"com.example.next"}"# + "\n")
            #expect(removal.errors.contains("1 of 2 named is not registered"))
            #expect(removal.status == 2)
            #expect(try await fixture.texts(clients) == ["com.example.north"])
        }
    }

    @Test(
        "A daemon whose port is in use does not change the clients of the running daemon.",
        arguments: ["SIWAD_LISTEN", "SIWAD_OPERATIONS_LISTEN"]
    )
    func clientsOfAnother(key: String) async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            let clients = "SELECT client_id || team_id FROM siwa.clients ORDER BY 1"
            let before = try await fixture.texts(clients)
            let address = key == "SIWAD_LISTEN" ? addresses.notifications : addresses.operations
            let taken = address.split(separator: "/").dropFirst().first.map(String.init) ?? ""
            let apps = "CCCCCCCCCC/com.example.three"
            let second = try await siwad(["serve"], environment: fixture.environment([key: taken, "SIWAD_APPS": apps]))
            #expect(second.status == 1, "\(second.errors)")
            #expect(try await fixture.texts(clients) == before)
        }
    }

    @Test("Readiness reports the schema version, and fails when it is no longer the daemon's.")
    func schema() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            func readiness() async throws -> (Int, String) {
                let response = try await Web.get(addresses.operations + "/readyz?verbose")
                return (response.status, response.body)
            }
            #expect(try await readiness().1.contains("[+]schema ok\n"))
            let record = "INSERT INTO siwa.schema_migrations (number, name, checksum) VALUES (9999, 'tomorrow', 'ffff')"
            try await fixture.run(record)
            let newer = try await readiness()
            #expect(newer.0 == 200 && newer.1.contains("[+]schema ok: newer"), "\(newer)")
            try await fixture.run("UPDATE siwa.schema_migrations SET checksum = 'ffff' WHERE number = 1")
            let changed = try await readiness()
            #expect(changed.0 == 503 && changed.1.contains("[-]schema failed: migration 1 "), "\(changed)")
            try await fixture.run("DELETE FROM siwa.schema_migrations WHERE number < 9999")
            let missing = try await readiness()
            #expect(missing.0 == 503 && missing.1.contains("[-]schema failed: the database misses"), "\(missing)")
            try await fixture.run("DROP TABLE siwa.schema_migrations")
            let none = try await readiness()
            #expect(none.0 == 503 && none.1.contains("[-]schema failed: the database is not migrated"), "\(none)")
        }
    }

    /// Resident memory of a process (proc(5), VmRSS).
    private func residentKilobytes(of process: Int32) throws -> Int {
        let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
        let line = status.split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
        return try #require(line?.split(whereSeparator: \.isWhitespace).dropFirst().first.flatMap { Int($0) })
    }
}
