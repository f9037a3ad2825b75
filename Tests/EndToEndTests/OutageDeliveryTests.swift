import AccountStore
import Postgres
import Testing

@Suite("Deliveries after long faults", .timeLimit(.minutes(5)))
struct OutageDeliveryTests {
    /// As if this time had passed.
    private func pass(_ interval: String, _ fixture: DaemonFixture) async throws {
        try await fixture.run(
            """
            UPDATE siwa.deliveries SET created_at = created_at - interval '\(interval)',
                next_attempt_at = next_attempt_at - interval '\(interval)',
                first_failed_at = first_failed_at - interval '\(interval)';
            UPDATE siwa.endpoint_states SET failing_since = failing_since - interval '\(interval)',
                open_until = open_until - interval '\(interval)';
            UPDATE siwa.endpoints SET status_at = status_at - interval '\(interval)';
            """
        )
    }

    @Test("After three days without an endpoint, it gets all in order, and probes have used up no attempt.")
    func threeDays() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .status(500) }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) {
                    $0.ordering = .person
                    $0.retries = EndpointConfiguration.usualRetries
                }
                var first = 0
                for period in 0..<12 {
                    try await fixture.revoke(50, people: 20)
                    let daemon = fixture.start(try DaemonFixture.delivering())
                    _ = try await daemon.ready()
                    let before = receiver.messages.count
                    try await eventually("attempts") { receiver.messages.count > before }
                    try await eventually("the open circuit") {
                        try await fixture.texts(
                            """
                            SELECT concat_ws(' ', s.open_until > now(), count(d.claim))
                            FROM siwa.endpoint_states AS s, siwa.deliveries AS d GROUP BY s.endpoint_id
                            """
                        ) == ["t 0"]
                    }
                    daemon.send("TERM")
                    #expect(try await daemon.end() == 0)
                    if period == 0 { first = receiver.messages.count }
                    try await pass("6 h", fixture)
                }
                #expect(first <= 5 + 8)
                #expect(receiver.messages.count == first + 11, "a probe in each of the other periods")
                // Those whose failures opened the circuit.
                let attempts = "SELECT concat_ws(' ', max(attempts), sum(attempts) <= 5) FROM siwa.deliveries"
                #expect(try await fixture.texts(attempts) == ["1 t"])
                let failing = "SELECT (now() - failing_since >= interval '3 days')::text FROM siwa.endpoint_states"
                #expect(try await fixture.texts(failing) == ["true"])
                let outage = receiver.messages.count
                receiver.answer { _, _ in .status(200) }
                try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                    try await eventually("all deliveries") { try await fixture.deliveries() == ["shop delivered 600"] }
                }
                let messages = receiver.messages.dropFirst(outage)
                #expect(messages.count == 600 && Set(messages.map(\.position)).count == 600)
                for (_, own) in Dictionary(grouping: messages, by: \.sub) {
                    #expect(own.map(\.position) == own.map(\.position).sorted())
                }
            }
        }
    }

    @Test("If a daemon's database connections hang, others deliver after its claims, and its outcomes don't count.")
    func blackHole() async throws {
        try await DaemonFixture.with { fixture in
            try await FaultyProxy.with(before: fixture.connection) { proxy in
                try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .never }) { receiver in
                    try await fixture.addEndpoint("shop", receiver.url) { $0.timeout = .seconds(60) }
                    let through = ["SIWAD_DATABASE_URL": proxy.conninfo(fixture.conninfo)]
                    let first = fixture.start(try DaemonFixture.delivering(through))
                    _ = try await first.ready()
                    try await fixture.revoke(20)
                    try await eventually("the requests") { receiver.messages.count == 8 }
                    try await proxy.now(.holdEverything)
                    receiver.answer { _, _ in .status(200) }
                    try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                        try await eventually("the others") {
                            try await fixture.deliveries() == ["shop delivered 12", "shop pending 8"]
                        }
                        let expiry = "UPDATE siwa.deliveries SET claimed_until = now() WHERE claim IS NOT NULL"
                        try await fixture.run(expiry)
                        try await eventually("all") { try await fixture.deliveries() == ["shop delivered 20"] }
                    }
                    #expect(receiver.messages.count == 28)
                    let rows =
                        "SELECT concat_ws(' ', attempts, resolved_at, xmin) FROM siwa.deliveries ORDER BY position"
                    let before = try await fixture.texts(rows)
                    try await proxy.now(.pass)
                    await receiver.close()
                    first.send("TERM")
                    #expect(try await first.end() == 0)
                    #expect(try await fixture.texts(rows) == before)
                }
            }
        }
    }
}
