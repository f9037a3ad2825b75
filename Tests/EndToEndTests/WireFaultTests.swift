import AppleSimulator
import NIOCore
import Testing

@Suite("Network faults between the daemon and PostgreSQL", .timeLimit(.minutes(10)))
struct WireFaultTests {
    /// Runs a test with a daemon that reaches its database through a faulty proxy.
    private func withWire(
        _ body: (DaemonFixture, FaultyProxy, DaemonProcess.Addresses) async throws -> Void
    ) async throws {
        try await DaemonFixture.with { fixture in
            try await FaultyProxy.with(before: fixture.connection) { proxy in
                let settings = ["SIWAD_DATABASE_URL": proxy.conninfo(fixture.conninfo)]
                try await fixture.withDaemon(settings) { _, addresses in try await body(fixture, proxy, addresses) }
            }
        }
    }

    @Test("A commit whose response was lost is acknowledged once siwad knows the outcome, and has one effect.")
    func lostAnswer() async throws {
        try await withWire { fixture, proxy, addresses in
            for number in 0..<5 {
                let event = fixture.event("consent-revoked", sub: "person\(number)", id: "lost response \(number)")
                try await proxy.dropResponse(to: event.id)
                let body = try fixture.body(event)
                // 503 first, if the machine is too busy to reconnect within a second.
                try await eventually("an acknowledgement") {
                    let status = try await Web.post(body, to: addresses.notifications).status
                    #expect([200, 503].contains(status))
                    return status == 200
                }
            }
            #expect(try await proxy.droppedResponses == 5)
            #expect(
                try await fixture.texts("SELECT outcome FROM siwa.notifications")
                    == Array(repeating: "applied", count: 5)
            )
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.account_history") == ["5"])
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test("A daemon stays ready when the connection of its check breaks.")
    func brokenCheck() async throws {
        try await withWire { _, proxy, addresses in
            for number in 1...3 {
                try await proxy.dropResponse(to: "siwa.schema_migrations")
                let readiness = try await Web.get(addresses.operations + "/readyz?verbose")
                #expect(readiness.status == 200, "\(readiness.body)")
                #expect(try await proxy.droppedResponses == number)
            }
        }
    }

    @Test("Connections that break repeatedly under load lose no acknowledged notification.")
    func cuts() async throws {
        try await MachineLock.withLock {
            try await withWire { fixture, proxy, addresses in
                let load = LoadRun(to: [addresses.notifications]) {
                    let event = fixture.event(sub: SimulatedEvent.randomSubject())
                    return LoadRun.Item(id: event.id, body: try fixture.body(event))
                }
                async let running: Void = load.run(connections: 16)
                for _ in 0..<20 {
                    let goal = load.acknowledged + Int.random(in: 1...50)
                    try await eventually("progress") { load.acknowledged >= goal }
                    try await proxy.cut()
                }
                load.stop()
                try await running
                let findings = try await RecordedIDs.read(on: fixture.connection).findings(after: load.outcome)
                #expect(findings.isEmpty, "\(findings.prefix(5))")
                #expect(load.outcome.unanswered.isEmpty, "\(load.outcome.unanswered)")
            }
        }
    }

    @Test("A slow network makes batches larger, and all responses stay correct.")
    func slow() async throws {
        try await withWire { fixture, proxy, addresses in
            try await proxy.now(.delay(.milliseconds(100)))
            let bodies = try (0..<200).map { try fixture.body(fixture.event(sub: "person\($0)")) }
            try await withThrowingTaskGroup(of: Int.self) { group in
                for body in bodies {
                    group.addTask { try await Web.post(body, to: addresses.notifications).status }
                }
                for try await status in group { #expect(status == 200) }
            }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["200"])
            let transactions = try await fixture.texts(
                "SELECT count(DISTINCT xmin::text)::text FROM siwa.notifications"
            )
            #expect((transactions.first.flatMap { Int($0) } ?? .max) < 40)
        }
    }

    @Test(
        "A proxy that swallows everything: 503 within half a minute and no 200; when it works again, so does the daemon."
    )
    func blackHole() async throws {
        try await withWire { fixture, proxy, addresses in
            #expect(
                try await Web.post(fixture.body(fixture.event(id: "before")), to: addresses.notifications).status == 200
            )
            try await proxy.now(.holdEverything)
            let body = try fixture.body(fixture.event("consent-revoked", sub: "swallowed", id: "swallowed"))
            // A response takes about two seconds; the machine may be busy.
            let start = ContinuousClock.now
            #expect(try await Web.get(addresses.operations + "/readyz").status == 503)
            #expect(.now - start < .seconds(8))
            let response = try await Web.post(body, to: addresses.notifications)
            #expect(response.status == 503)
            #expect((response.retryAfter ?? 0) > 0)
            #expect(try await Web.get(addresses.operations + "/readyz").status == 503)
            #expect(try await Web.get(addresses.operations + "/livez").status == 200)
            try await proxy.now(.pass)
            try await eventually("the daemon to be back", within: .seconds(60)) {
                try await Web.post(body, to: addresses.notifications).status == 200
            }
            let kept = try await fixture.texts("SELECT jti || ' ' || outcome FROM siwa.notifications ORDER BY jti")
            #expect(kept == ["before applied", "swallowed applied"])
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test("If one of several addresses becomes unreachable, the daemon continues at the next.")
    func failover() async throws {
        try await DaemonFixture.with { fixture in
            try await FaultyProxy.with(before: fixture.connection) { first in
                try await FaultyProxy.with(before: fixture.connection) { second in
                    let hosts = "host=127.0.0.1,127.0.0.1 port=\(first.port),\(second.port)"
                    let settings = [
                        "SIWAD_DATABASE_URL": "\(fixture.conninfo) \(hosts) target_session_attrs=read-write"
                    ]
                    try await fixture.withDaemon(settings) { _, addresses in
                        let body = try fixture.body(fixture.event(id: "first"))
                        #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                        #expect(try await second.connections.ever == 0)
                        try await first.goAway()
                        try await eventually("the second address to be used") {
                            let body = try fixture.body(fixture.event(id: "second"))
                            return try await Web.post(body, to: addresses.notifications).status == 200
                        }
                        #expect(try await second.connections.open > 0)
                    }
                }
            }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY jti") == ["first", "second"])
        }
    }
}
