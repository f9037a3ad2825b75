import AppleSimulator
import Testing

@Suite("Several daemons on one database", .timeLimit(.minutes(10)))
struct SeveralDaemonsTests {
    @Test("The same notification sent to all of them at the same time has one effect, and all acknowledge it.")
    func together() async throws {
        try await DaemonFixture.with { fixture in
            let daemons = (0..<3).map { _ in fixture.start() }
            var addresses: [DaemonProcess.Addresses] = []
            for daemon in daemons { addresses.append(try await daemon.ready()) }
            let bodies = try (0..<60).map { number in
                // Few people, so that the transactions compete for their rows.
                try fixture.body(
                    fixture.event("consent-revoked", sub: "person\(number % 20)", secondsAgo: Int64(number))
                )
            }
            try await withThrowingTaskGroup(of: Int.self) { group in
                for body in bodies {
                    for address in addresses {
                        group.addTask { try await Web.post(body, to: address.notifications).status }
                    }
                }
                for try await status in group { #expect(status == 200) }
            }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["60"])
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
            let repeated = try await fixture.texts(
                "SELECT jti FROM siwa.account_history GROUP BY jti, sub, app_id, facet HAVING count(*) > 1"
            )
            #expect(repeated.isEmpty)
            var outcomes: [String: Int] = [:]
            try await eventually("180 counted notifications") {
                outcomes = [:]
                for address in addresses {
                    let metrics = try await Web.get(address.operations + "/metrics").body
                    for (outcome, count) in counts(metrics) { outcomes[outcome, default: 0] += count }
                }
                return outcomes.values.reduce(0, +) == 180
            }
            #expect(outcomes["duplicate"] == 120)
        }
    }

    @Test("A rolling restart under load loses nothing, and behind a load balancer no request fails.")
    func rollingRestart() async throws {
        try await MachineLock.withLock {
            try await DaemonFixture.with { fixture in
                var daemons: [(process: DaemonProcess, address: DaemonProcess.Addresses)] = []
                for _ in 0..<3 {
                    let daemon = fixture.start()
                    daemons.append((daemon, try await daemon.ready()))
                }
                let load = LoadRun(to: daemons.map(\.address.notifications), balancing: true) {
                    let event = fixture.event(sub: SimulatedEvent.randomSubject())
                    return LoadRun.Item(id: event.id, body: try fixture.body(event))
                }
                async let running: Void = load.run(connections: 16)
                for _ in 0..<6 {
                    let goal = load.acknowledged + 100
                    try await eventually("progress") { load.acknowledged >= goal }
                    let old = daemons.removeFirst()
                    // Like a load balancer: polls readiness, and uses the other daemons if one is not ready.
                    let readiness = old.address.operations + "/readyz"
                    #expect(try await Web.get(readiness).status == 200)
                    old.process.send("TERM")
                    try await eventually("readiness to drop") { try await Web.get(readiness).status == 503 }
                    load.redirect(to: daemons.map(\.address.notifications))
                    #expect(try await old.process.end() == 0)
                    let daemon = fixture.start()
                    daemons.append((daemon, try await daemon.ready()))
                    load.redirect(to: daemons.map(\.address.notifications))
                }
                load.stop()
                try await running
                let outcome = load.outcome
                let findings = try await RecordedIDs.read(on: fixture.connection).findings(after: outcome)
                #expect(findings.isEmpty, "\(findings.prefix(5))")
                #expect(outcome.acknowledged == outcome.sent)
                #expect(outcome.unavailable.isEmpty, "\(outcome.unavailable)")
                #expect(outcome.unanswered.isEmpty, "\(outcome.unanswered)")
                print("rolling restart: \(outcome.acknowledged.count) acknowledged, \(outcome.redirected) redirected")
            }
        }
    }

    private func counts(_ metrics: String) -> [(outcome: String, count: Int)] {
        metrics.split(separator: "\n").compactMap { line in
            guard line.hasPrefix("siwad_notifications_total{") else { return nil }
            let parts = line.split(separator: "\"")
            guard parts.count == 5, let count = Int(parts[4].dropFirst(2)) else { return nil }
            return (String(parts[3]), count)
        }
    }
}
