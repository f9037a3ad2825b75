import AppleSimulator
import NIOCore
import Testing

@Suite("Between the daemon and PostgreSQL", .timeLimit(.minutes(10)))
struct WireFaultTests {
    /// Runs a test with a daemon that reaches its database through a faulty wire.
    private func withWire(
        _ body: (Scene, FaultyWire, DaemonProcess.Addresses) async throws -> Void
    ) async throws {
        try await Scene.with { scene in
            try await FaultyWire.with(before: scene.connection) { wire in
                let settings = ["SIWAD_DATABASE_URL": wire.conninfo(scene.conninfo)]
                try await scene.withDaemon(settings) { _, addresses in try await body(scene, wire, addresses) }
            }
        }
    }

    @Test("A commit whose answer was lost is acknowledged once it is known to be there, and has one effect.")
    func lostAnswer() async throws {
        try await withWire { scene, wire, addresses in
            for number in 0..<5 {
                let event = scene.event("consent-revoked", sub: "person\(number)", id: "lost answer \(number)")
                try await wire.dropAnswer(to: event.id)
                let body = try scene.body(event)
                // Where the machine is too busy to reconnect within a second, it is 503 first.
                try await eventually("an acknowledgement") {
                    let status = try await Web.post(body, to: addresses.notifications).status
                    #expect([200, 503].contains(status))
                    return status == 200
                }
            }
            #expect(try await wire.droppedAnswers == 5)
            #expect(
                try await scene.texts("SELECT outcome FROM siwa.notifications") == Array(repeating: "applied", count: 5)
            )
            #expect(try await scene.texts("SELECT count(*)::text FROM siwa.account_history") == ["5"])
            #expect(try await scene.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test("Connections that break again and again under load cost nothing that was acknowledged.")
    func cuts() async throws {
        try await Turn.take {
            try await withWire { scene, wire, addresses in
                let load = Load(to: [addresses.notifications]) {
                    let event = scene.event(sub: SimulatedEvent.randomSubject())
                    return Load.Item(id: event.id, body: try scene.body(event))
                }
                async let running: Void = load.run(connections: 16)
                for _ in 0..<20 {
                    let goal = load.acknowledged + Int.random(in: 1...50)
                    try await eventually("progress") { load.acknowledged >= goal }
                    try await wire.cut()
                }
                load.stop()
                try await running
                let findings = try await RecordedIDs.read(on: scene.connection).findings(after: load.outcome)
                #expect(findings.isEmpty, "\(findings.prefix(5))")
                #expect(load.outcome.unanswered.isEmpty, "\(load.outcome.unanswered)")
            }
        }
    }

    @Test("A slow wire makes batches larger, not answers wrong.")
    func slow() async throws {
        try await withWire { scene, wire, addresses in
            try await wire.now(.delay(.milliseconds(100)))
            let bodies = try (0..<200).map { try scene.body(scene.event(sub: "person\($0)")) }
            try await withThrowingTaskGroup(of: Int.self) { group in
                for body in bodies {
                    group.addTask { try await Web.post(body, to: addresses.notifications).status }
                }
                for try await status in group { #expect(status == 200) }
            }
            #expect(try await scene.texts("SELECT count(*)::text FROM siwa.notifications") == ["200"])
            let transactions = try await scene.texts("SELECT count(DISTINCT xmin::text)::text FROM siwa.notifications")
            #expect((transactions.first.flatMap { Int($0) } ?? .max) < 40)
        }
    }

    @Test(
        "A wire that swallows everything: 503 within half a minute and no 200; when it works again, so does the daemon."
    )
    func blackHole() async throws {
        try await withWire { scene, wire, addresses in
            #expect(
                try await Web.post(scene.body(scene.event(id: "before")), to: addresses.notifications).status == 200
            )
            try await wire.now(.blackHole)
            let body = try scene.body(scene.event("consent-revoked", sub: "swallowed", id: "swallowed"))
            // Whoever asks is told within two seconds or so; the machine may be busy.
            let start = ContinuousClock.now
            #expect(try await Web.get(addresses.operations + "/readyz").status == 503)
            #expect(.now - start < .seconds(8))
            let answer = try await Web.post(body, to: addresses.notifications)
            #expect(answer.status == 503)
            #expect((answer.retryAfter ?? 0) > 0)
            #expect(try await Web.get(addresses.operations + "/readyz").status == 503)
            #expect(try await Web.get(addresses.operations + "/livez").status == 200)
            try await wire.now(.pass)
            try await eventually("the daemon to be back", within: .seconds(60)) {
                try await Web.post(body, to: addresses.notifications).status == 200
            }
            let kept = try await scene.texts("SELECT jti || ' ' || outcome FROM siwa.notifications ORDER BY jti")
            #expect(kept == ["before applied", "swallowed applied"])
            #expect(try await scene.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test("When one address of several goes away, the daemon goes on at the next.")
    func failover() async throws {
        try await Scene.with { scene in
            try await FaultyWire.with(before: scene.connection) { first in
                try await FaultyWire.with(before: scene.connection) { second in
                    let hosts = "host=127.0.0.1,127.0.0.1 port=\(first.port),\(second.port)"
                    let settings = [
                        "SIWAD_DATABASE_URL": "\(scene.conninfo) \(hosts) target_session_attrs=read-write"
                    ]
                    try await scene.withDaemon(settings) { _, addresses in
                        let body = try scene.body(scene.event(id: "first"))
                        #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                        #expect(try await second.connections.ever == 0)
                        try await first.goAway()
                        try await eventually("the second address to be used") {
                            let body = try scene.body(scene.event(id: "second"))
                            return try await Web.post(body, to: addresses.notifications).status == 200
                        }
                        #expect(try await second.connections.open > 0)
                    }
                }
            }
            #expect(try await scene.texts("SELECT jti FROM siwa.notifications ORDER BY jti") == ["first", "second"])
        }
    }
}
