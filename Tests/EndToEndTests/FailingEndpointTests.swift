import AccountStore
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Endpoints that fail, ask for a pause or never answer", .timeLimit(.minutes(10)))
struct FailingEndpointTests {
    @Test("One poisonous person delays no other, and opens nothing.")
    func poison() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, daemon, addresses in
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                answering: { message, _ in .status(message.sub == "p3" ? 500 : 200) }
            ) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.retries = [.milliseconds(10)] }
                try await fixture.revoke(200, people: 20)
                try await fixture.untilDelivered("shop dead 10", "shop delivered 190")
                #expect(!daemon.log.contains { $0.contains("endpoint fails") })
                let attempts = "SELECT DISTINCT concat_ws(' ', status, attempts) FROM siwa.deliveries ORDER BY 1"
                #expect(try await fixture.texts(attempts) == ["dead 2", "delivered 1"])
                #expect(receiver.messages.count { $0.sub == "p3" } == 20)
                #expect(receiver.messages.count { $0.sub != "p3" } == 190)
                try await expectClosed(fixture, addresses)
            }
        }
    }

    @Test(
        "While changes of a poisonous person wait for their next attempt, all others are delivered.",
        arguments: [
            (EndpointConfiguration.Ordering.attempt, ["shop retry 10"]),
            (EndpointConfiguration.Ordering.person, ["shop pending 9", "shop retry 1"]),
        ]
    )
    func poisonWaits(_ ordering: EndpointConfiguration.Ordering, waiting: [String]) async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, addresses in
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                answering: { message, _ in .status(message.sub == "p3" ? 500 : 200) }
            ) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) {
                    $0.ordering = ordering
                    $0.retries = [.seconds(3_600)]
                }
                try await fixture.revoke(200, people: 20)
                try await eventually("the deliveries", within: .seconds(60)) {
                    try await fixture.deliveries() == ["shop delivered 190"] + waiting
                }
                #expect(Set(receiver.positions).count == receiver.messages.count, "one attempt for each change")
                try await expectClosed(fixture, addresses)
            }
        }
    }

    /// The endpoint's circuit is closed, in the database and for operators.
    private func expectClosed(_ fixture: DaemonFixture, _ addresses: DaemonProcess.Addresses) async throws {
        let open = "SELECT count(*)::text FROM siwa.endpoint_states WHERE open_until IS NOT NULL"
        #expect(try await fixture.texts(open) == ["0"])
        let metrics = try await Web.get(addresses.operations + "/metrics").body
        #expect(metrics.contains(#"siwad_endpoint_state{endpoint="shop",state="enabled"} 1"#))
    }

    @Test(
        "While an endpoint is down, few attempts are made; then it gets everything, and each person's changes in order."
    )
    func down() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, daemon, addresses in
            let receiver = try await WebhookReceiver(try DaemonFixture.secret, port: 0)
            let port = receiver.port
            await receiver.close()
            try await fixture.addEndpoint("shop", receiver.url + "?key=s3cret") {
                $0.ordering = .person
                $0.retries = [.milliseconds(10), .milliseconds(10), .milliseconds(10)]
            }
            try await fixture.revoke(500, people: 50)
            try await eventually("the open circuit") { daemon.log.contains { $0.contains("endpoint fails") } }
            try await eventually("the metric") {
                try await Web.get(addresses.operations + "/metrics").body
                    .contains(#"siwad_endpoint_state{endpoint="shop",state="open"} 1"#)
            }
            #expect(try await fixture.texts("SELECT (sum(attempts) <= 16)::text FROM siwa.deliveries") == ["true"])
            let again = try await WebhookReceiver(try DaemonFixture.secret, port: port)
            try await fixture.untilDelivered("shop delivered 500")
            try await eventually("the report of it") { daemon.log.contains { $0.contains("endpoint works again") } }
            #expect(!daemon.log.contains { $0.contains("s3cret") })
            for (_, messages) in Dictionary(grouping: again.messages, by: \.sub) {
                #expect(messages.map(\.position) == messages.map(\.position).sorted())
            }
            await again.close()
        }
    }

    @Test("A receiver that is gone disables its endpoint, and after resuming it gets what it missed until then.")
    func gone() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, daemon, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .status(410) }) { receiver in
                let id = try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.revoke(20)
                try await eventually("the status") {
                    try await fixture.texts("SELECT status || ' ' || status_reason FROM siwa.endpoints") == [
                        "disabled gone"
                    ]
                }
                try await eventually("the end of the requests") {
                    try await fixture.texts("SELECT count(claim)::text FROM siwa.deliveries") == ["0"]
                }
                #expect(try await fixture.deliveries() == ["shop pending 20"])
                try await eventually("the report of it") {
                    daemon.log.contains {
                        $0.contains("endpoint disabled") && $0.contains("siwad endpoints resume shop")
                    }
                }
                receiver.answer { _, _ in .status(200) }
                let before = receiver.messages.count
                // Changes that are published while the endpoint is disabled.
                try await fixture.revoke(5)
                try await fixture.untilDelivered("shop pending 25")
                #expect(receiver.messages.count == before)
                try await fixture.connection.transaction { session throws(PostgresError) in
                    try Endpoints.resume(id, in: session)
                }
                try await fixture.untilDelivered("shop delivered 25")
                #expect(receiver.accepted.count == 25 && Set(receiver.accepted).count == 25)
            }
        }
    }

    @Test("An answer that asks for nothing more disables its endpoint, and the change stays undelivered.")
    func disabled() async throws {
        let answer = WebhookReceiver.Answer.status(500, ["webhook-delivery": "disable"])
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in answer }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.revoke(1)
                try await eventually("the status") {
                    try await fixture.texts("SELECT status || ' ' || status_reason FROM siwa.endpoints") == [
                        "disabled gone"
                    ]
                }
                let row = "SELECT concat_ws(' ', status, attempts, reason, claim) FROM siwa.deliveries"
                #expect(try await fixture.texts(row) == ["pending 0 gone"])
                #expect(receiver.messages.count == 1)
            }
        }
    }

    @Test("An endpoint that has failed for too long, also before a restart, is disabled.")
    func failing() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .status(500) }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.disableAfter = .seconds(3_600) }
                try await fixture.withDaemon(try DaemonFixture.delivering()) { daemon, _ in
                    try await fixture.revoke(20)
                    try await eventually("a failure") {
                        try await fixture.texts("SELECT (failing_since IS NOT NULL)::text FROM siwa.endpoint_states")
                            == ["true"]
                    }
                }
                #expect(try await fixture.texts("SELECT status FROM siwa.endpoints") == ["enabled"])
                try await fixture.run(
                    """
                    UPDATE siwa.endpoints SET status_at = now() - interval '3 h';
                    UPDATE siwa.endpoint_states SET failing_since = now() - interval '2 h', open_until = now(), probe_delay = '5 s';
                    """
                )
                try await fixture.withDaemon(try DaemonFixture.delivering()) { daemon, _ in
                    try await eventually("the status") {
                        try await fixture.texts("SELECT status || ' ' || status_reason FROM siwa.endpoints") == [
                            "disabled failing"
                        ]
                    }
                }
            }
        }
    }

    /// From the publication of 200 changes to their arrival.
    private func deliveryTime(_ fixture: DaemonFixture, _ receiver: WebhookReceiver) async throws -> Duration {
        let goal = receiver.messages.count + 200
        try await fixture.revoke(200)
        let start = ContinuousClock.now
        // The daemon would publish them after up to a second.
        try await fixture.run("SELECT siwa.publish_changes()")
        try await eventually("the deliveries", within: .seconds(60)) { receiver.messages.count >= goal }
        return .now - start
    }

    @Test("Neither endpoints that never answer nor failing ones delay another one, or Apple.")
    func fairness() async throws {
        let secret = try DaemonFixture.secret
        let settings = try DaemonFixture.delivering(["SIWAD_DELIVERY_CONCURRENCY": "8"])
        try await DaemonFixture.withDaemon(settings) { fixture, _, addresses in
            try await WebhookReceiver.with(secret, answering: { _, _ in .never }) { silent in
                try await WebhookReceiver.with(secret, answering: { _, _ in .status(503) }) { failing in
                    try await WebhookReceiver.with(secret) { healthy in
                        try await fixture.addEndpoint("healthy", healthy.url)
                        let alone = try await deliveryTime(fixture, healthy)
                        for name in ["silent-a", "silent-b", "silent-c"] {
                            // No request ends during the test.
                            try await fixture.addEndpoint(name, silent.url) { $0.timeout = .seconds(60) }
                        }
                        try await fixture.addEndpoint("failing", failing.url)
                        try await fixture.revoke(20)
                        // All that the setting allows, and the one that each endpoint always has.
                        try await eventually("the silent ones to have all requests") { silent.messages.count == 8 + 3 }
                        try await eventually("the healthy one") { healthy.messages.count == 220 }
                        let beside = try await deliveryTime(fixture, healthy)
                        let limit = alone * 3 + .seconds(2)
                        #expect(beside < limit, "alone: \(alone)")
                        try await eventually("all outcomes") {
                            try await fixture.deliveries().contains("healthy delivered 420")
                        }
                        for number in 0..<20 {
                            let start = ContinuousClock.now
                            let body = try fixture.body(fixture.event("consent-revoked", sub: "p\(number)"))
                            #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                            #expect(.now - start < .seconds(2))
                        }
                    }
                }
            }
        }
    }

    @Test("An endpoint that asked for a pause leaves the common requests to the others until its end.")
    func paused() async throws {
        let settings = try DaemonFixture.delivering(["SIWAD_DELIVERY_CONCURRENCY": "8"])
        try await DaemonFixture.withDaemon(settings) { fixture, _, _ in
            let secret = try DaemonFixture.secret
            try await WebhookReceiver.with(secret, answering: { _, _ in .status(429, ["Retry-After": "600"]) }) {
                full in
                try await WebhookReceiver.with(secret, answering: { _, _ in .never }) { silent in
                    try await fixture.addEndpoint("full", full.url) { $0.concurrency = 8 }
                    try await fixture.revoke(8)
                    try await eventually("the pause") {
                        try await fixture.texts(
                            "SELECT 1::text FROM siwa.endpoint_states WHERE open_until > now() + interval '500 s'"
                        ).count == 1
                    }
                    try await fixture.addEndpoint("silent", silent.url) {
                        $0.concurrency = 8
                        $0.timeout = .seconds(60)
                    }
                    try await fixture.revoke(8)
                    try await eventually("eight requests at the same time") { silent.messages.count == 8 }
                }
            }
        }
    }

    @Test("An open circuit with nothing to probe asks the database about once a second.")
    func nothingToProbe() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.addEndpoint("dead", "http://127.0.0.1:1/")
                try await fixture.run(
                    """
                    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_functions = pl', current_database()); END $$;
                    UPDATE siwa.endpoint_states
                    SET failing_since = now() - interval '1 min', open_until = now() - interval '30 s', probe_delay = '5 s'
                    """
                )
                try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                    func claims() async throws -> Int {
                        let sql = "SELECT calls::text FROM pg_stat_user_functions WHERE funcname = 'claim_deliveries'"
                        return try await fixture.texts(sql).first.flatMap { Int($0) } ?? 0
                    }
                    let start = ContinuousClock.now
                    // Two for each look: the newest change and the oldest.
                    try await eventually("looks for a probe") { try await claims() >= 8 }
                    let rate = Double(try await claims()) / ((.now - start) / .seconds(1))
                    #expect(rate < 10, "\(rate) claims a second")
                }
            }
        }
    }
}
