import AccountStore
import Postgres
import Synchronization
import TestSupport
import Testing

@Suite("Deliveries and faults of daemons, endpoints and the database", .timeLimit(.minutes(10)))
struct DeliveryFaultTests {
    @Test("Three daemons deliver each change once to six endpoints, also while they are restarted one after the other.")
    func several() async throws {
        let secret = try DaemonFixture.secret
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(secret) { receiver in
                for number in 0..<6 { try await fixture.addEndpoint("e\(number)", receiver.url + "/\(number)") }
                var daemons: [DaemonProcess] = []
                for _ in 0..<3 { daemons.append(fixture.start(try DaemonFixture.delivering())) }
                for daemon in daemons { _ = try await daemon.ready() }
                for _ in 0..<3 {
                    try await fixture.revoke(100)
                    let daemon = daemons.removeFirst()
                    daemon.send("TERM")
                    #expect(try await daemon.end() == 0)
                    daemons.append(fixture.start(try DaemonFixture.delivering()))
                    _ = try await daemons[2].ready()
                }
                try await eventually("all deliveries") {
                    try await fixture.deliveries() == (0..<6).map { "e\($0) delivered 300" }
                }
                let messages = receiver.messages
                #expect(messages.count == 1_800 && messages.allSatisfy { $0.id != nil })
                let byEndpoint = Dictionary(grouping: messages) { $0.head.prefix { $0 != "\r\n" } }
                #expect(byEndpoint.values.map { Set($0.map(\.position)).count } == Array(repeating: 300, count: 6))
            }
        }
    }

    @Test("Daemons that are killed again and again lose nothing, and repeat at most what was under way.")
    func killed() async throws {
        let secret = try DaemonFixture.secret
        let kills = LongVariants.areWanted ? 200 : 8
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(secret) { steady in
                try await WebhookReceiver.with(
                    secret,
                    answering: { _, number in .status(number / 20 % 2 == 0 ? 200 : 503) }
                ) { flapping in
                    let short: (inout EndpointConfiguration) -> Void = {
                        $0.timeout = .seconds(1)
                        $0.retries = Array(repeating: .milliseconds(20), count: 50)
                    }
                    try await fixture.addEndpoint("steady", steady.url, short)
                    try await fixture.addEndpoint("flapping", flapping.url, short)
                    for _ in 0..<kills {
                        let daemon = fixture.start(try DaemonFixture.delivering())
                        _ = try await daemon.ready()
                        let goal = steady.messages.count + 20
                        try await fixture.revoke(100)
                        try await eventually("progress", within: .seconds(60)) { steady.messages.count >= goal }
                        await daemon.kill()
                    }
                    try await fixture.expireClaims()
                    try await fixture.run("UPDATE siwa.endpoint_states SET open_until = NULL, probe_delay = NULL")
                    flapping.answer { _, _ in .status(200) }
                    try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                        try await fixture.untilDelivered(
                            "flapping delivered \(kills * 100)",
                            "steady delivered \(kills * 100)",
                            within: .seconds(600)
                        )
                    }
                    #expect(Set(steady.positions).count == kills * 100)
                    #expect(steady.messages.count <= kills * (100 + 8))
                    let accepted = flapping.accepted
                    #expect(Set(accepted) == Set(steady.positions))
                    let repetitions = accepted.count - Set(accepted).count
                    #expect(repetitions <= kills * 8)
                }
            }
        }
    }

    @Test("Each kill of a daemon at full rate repeats at most the deliveries that may be under way at the same time.")
    func killedAtFullRate() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                func repetitions() -> Int {
                    let positions = receiver.positions
                    return positions.count - Set(positions).count
                }
                try await fixture.addEndpoint("shop", receiver.url)
                var daemon = fixture.start(try DaemonFixture.delivering())
                _ = try await daemon.ready()
                for round in 1...3 {
                    let (goal, before) = (receiver.messages.count + 100, repetitions())
                    try await fixture.revoke(600)
                    // The daemon would publish them after up to a second.
                    try await fixture.run("SELECT siwa.publish_changes()")
                    try await eventually("some deliveries") { receiver.messages.count >= goal }
                    await daemon.kill()
                    try await fixture.expireClaims()
                    daemon = fixture.start(try DaemonFixture.delivering())
                    _ = try await daemon.ready()
                    try await fixture.untilDelivered("shop delivered \(round * 600)")
                    #expect(Set(receiver.positions).count == round * 600)
                    #expect(repetitions() - before <= 8, "after kill \(round)")
                }
            }
        }
    }

    @Test("What a killed daemon had claimed is delivered when its claims end, without help.")
    func claimsEnd() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .never }) { receiver in
                // Long enough for the kill to come before the end of the first request.
                try await fixture.addEndpoint("shop", receiver.url) { $0.timeout = .seconds(2) }
                let first = fixture.start(try DaemonFixture.delivering())
                _ = try await first.ready()
                try await fixture.revoke(3)
                try await eventually("the requests") { receiver.messages.count == 3 }
                await first.kill()
                receiver.answer { _, _ in .status(200) }
                #expect(try await fixture.texts("SELECT count(claim)::text FROM siwa.deliveries") == ["3"])
                try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                    try await fixture.untilDelivered("shop delivered 3", within: .seconds(20))
                }
                #expect(receiver.messages.count == 6)
                #expect(Set(receiver.messages.compactMap(\.id)).count == 3)
                // A claim lasts for the timeout and 10 s.
                let rows = """
                    SELECT DISTINCT concat_ws(' ', attempts, resolved_at - created_at >= interval '12 s') FROM siwa.deliveries
                    """
                #expect(try await fixture.texts(rows) == ["2 t"])
            }
        }
    }

    @Test("A daemon that was stopped for longer than its claims changes nothing when it continues.")
    func stopped() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .never }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.timeout = .seconds(60) }
                let first = fixture.start(try DaemonFixture.delivering())
                _ = try await first.ready()
                try await fixture.revoke(4, people: 1)
                try await eventually("the first request") { receiver.messages.count == 1 }
                try await first.stop()
                receiver.answer { _, _ in .status(200) }
                // If it was stopped within a transaction, PostgreSQL would keep its locks for a minute.
                try await fixture.run(
                    """
                    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'siwad' AND state LIKE 'idle in transaction%'
                    """
                )
                try await fixture.run("UPDATE siwa.deliveries SET claimed_until = now() WHERE claim IS NOT NULL")
                try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                    try await fixture.untilDelivered("shop delivered 4")
                }
                let rows = "SELECT attempts || ' ' || resolved_at || ' ' || xmin FROM siwa.deliveries ORDER BY position"
                let before = try await fixture.texts(rows)
                await receiver.close()
                first.send("CONT")
                first.send("TERM")
                #expect(try await first.end() == 0)
                #expect(try await fixture.texts(rows) == before)
                #expect(receiver.positions.dropFirst() == receiver.positions.dropFirst().sorted()[...])
            }
        }
    }

    @Test("While PostgreSQL is away, outcomes wait in memory and are stored when it is back, so nothing is sent twice.")
    func databaseAway() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, addresses in
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                // One after the other, so that the daemon can't store the first outcomes before it has the last one.
                answering: { _, number in .delayed(.milliseconds(3_000 + 200 * number), 200) }
            ) { receiver in
                // So each claim lasts for 70 s.
                try await fixture.addEndpoint("shop", receiver.url) { $0.timeout = .seconds(60) }
                try await fixture.revoke(8)
                try await eventually("the requests") { receiver.messages.count == 8 }
                try await fixture.closeDatabase()
                #expect(receiver.answers == 0)
                try await eventually("the outcomes") {
                    try await Web.get(addresses.operations + "/metrics").body
                        .contains(#"siwad_delivery_attempts_total{endpoint="shop",outcome="delivered"} 8"#)
                }
                #expect(receiver.answers == 8)
                try await fixture.openDatabase()
                try await fixture.untilDelivered("shop delivered 8", within: .seconds(30))
                #expect(receiver.messages.count == 8)
            }
        }
    }

    @Test("When all connections to PostgreSQL end during deliveries, nothing is lost, and little is repeated.")
    func connectionsEnd() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.revoke(300)
                try await eventually("some deliveries") { receiver.messages.count >= 20 }
                try await fixture.closeDatabase()
                try await fixture.openDatabase()
                try await fixture.untilDelivered("shop delivered 300")
                #expect(Set(receiver.positions).count == 300)
                #expect(receiver.messages.count <= 300 + 8)
            }
        }
    }

    @Test("If PostgreSQL is killed or stopped during deliveries, nothing is lost, and only what it forgot is repeated.")
    func serverRestarts() async throws {
        try await PrivateCluster.withMigrated { cluster, fixture in
            let arrivals = Mutex<[ContinuousClock.Instant]>([])
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                // So slowly that PostgreSQL can have forgotten only a part of them, and then more slowly, so that some are left
                // for the time after the server was killed.
                answering: { _, number in
                    arrivals.withLock { $0.append(.now) }
                    return .delayed(.milliseconds(number < 400 ? 30 : 500), 200)
                }
            ) { receiver in
                func arrived(before time: ContinuousClock.Instant) -> Int {
                    arrivals.withLock { $0.count { $0 < time } }
                }
                // Without an order, so that a claim whose answer was lost with the server holds up no other delivery.
                try await fixture.addEndpoint("shop", receiver.url) { $0.ordering = .none }
                _ = try await fixture.start(try DaemonFixture.delivering()).ready()
                try await fixture.revoke(600)
                // 0.6 s, and the time from a request until its outcome is stored.
                let memory = Duration.seconds(1)
                try await eventually("deliveries that the server keeps") {
                    arrived(before: ContinuousClock.now - memory) >= 100
                }
                let kept = arrived(before: ContinuousClock.now - memory)
                try await cluster.kill()
                try await cluster.start()
                let sent = receiver.messages.count
                let forgotten = sent - kept
                try await eventually("further deliveries") { receiver.messages.count >= sent + 30 }
                await cluster.stop()
                receiver.answer { _, _ in .status(200) }
                try await cluster.start()
                // The connection of the first fixture was lost with the server.
                try await DaemonFixture.with(fixture.conninfo) { restarted in
                    // A claim lasts for the timeout of 15 s and 10 s.
                    let isLost = "coalesce(claimed_until < pg_postmaster_start_time() + interval '25 s', false)"
                    let others = "SELECT status FROM siwa.deliveries WHERE status = 'pending' AND NOT \(isLost) LIMIT 1"
                    try await eventually("the deliveries that are not claimed") {
                        try await restarted.texts(others).isEmpty
                    }
                    let expiry = "UPDATE siwa.deliveries SET claimed_until = now() WHERE claim IS NOT NULL"
                    try await restarted.run(expiry)
                    try await restarted.untilDelivered("shop delivered 600")
                }
                #expect(Set(receiver.positions).count == 600)
                // The others are what was under way and what was claimed to be sent next, at each end of the server.
                #expect(receiver.messages.count <= 600 + forgotten + 2 * 2 * 8, "\(kept) kept, \(forgotten) forgotten")
            }
        }
    }

    @Test("At SIGTERM, requests under way end, the others are given back, and nothing is sent twice.")
    func terminated() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.revoke(2_000)
                let daemon = fixture.start(try DaemonFixture.delivering())
                _ = try await daemon.ready()
                try await eventually("some deliveries") { receiver.messages.count >= 100 }
                daemon.send("TERM")
                #expect(try await daemon.end() == 0)
                #expect(try await fixture.texts("SELECT count(claim)::text FROM siwa.deliveries") == ["0"])
                let delivered = try await fixture.texts(
                    "SELECT count(*)::text FROM siwa.deliveries WHERE status = 'delivered'"
                )
                #expect(delivered == ["\(receiver.messages.count)"])
                #expect(Set(receiver.positions).count == receiver.messages.count)
            }
        }
    }

    @Test("At SIGTERM, a request without an answer is given back after the grace, and does not count as an attempt.")
    func givenBack() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .never }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.timeout = .seconds(60) }
                try await fixture.revoke(3)
                let daemon = fixture.start(try DaemonFixture.delivering(["SIWAD_SHUTDOWN_GRACE": "3s"]))
                _ = try await daemon.ready()
                try await eventually("the requests") { receiver.messages.count == 3 }
                daemon.send("TERM")
                // The grace, with room for a busy machine. The requests themselves would last for a minute.
                #expect(try await daemon.end(within: .seconds(12)) == 0)
                let rows = "SELECT DISTINCT concat_ws(' ', status, attempts, claim, reason) FROM siwa.deliveries"
                #expect(try await fixture.texts(rows) == ["pending 0"])
            }
        }
    }

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
                    let before = receiver.messages.count
                    let daemon = fixture.start(try DaemonFixture.delivering())
                    _ = try await daemon.ready()
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
                    try await fixture.untilDelivered("shop delivered 600")
                }
                let messages = receiver.messages.dropFirst(outage)
                #expect(messages.count == 600 && Set(messages.map(\.position)).count == 600)
                for (_, own) in Dictionary(grouping: messages, by: \.sub) {
                    #expect(own.map(\.position) == own.map(\.position).sorted())
                }
            }
        }
    }

    @Test("A probe whose claim waited for a lock until it was too late to send it is followed by another one.")
    func lateProbe() async throws {
        // Enough connections for the claim to be one of the statements that wait for the lock.
        let settings = try DaemonFixture.delivering(["SIWAD_DATABASE_CONNECTIONS": "16"])
        try await DaemonFixture.withDaemon(settings) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .status(503) }) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.revoke(20)
                let isDue = "open_until < clock_timestamp() - interval '6 s'"
                try await eventually("the open circuit") {
                    try await !fixture.texts("SELECT '' FROM siwa.endpoint_states WHERE open_until > now()").isEmpty
                }
                receiver.answer { _, _ in .status(200) }
                try await fixture.run(
                    """
                    DO $$ BEGIN
                        LOCK TABLE siwa.deliveries IN ACCESS EXCLUSIVE MODE;
                        WHILE NOT EXISTS (SELECT FROM siwa.endpoint_states WHERE \(isDue)) LOOP
                            PERFORM pg_sleep(0.01);
                        END LOOP;
                    END $$
                    """
                )
                try await fixture.untilDelivered("shop delivered 20")
            }
        }
    }

    @Test("If a daemon's database connections hang, others deliver after its claims, and its outcomes don't count.")
    func blackHole() async throws {
        try await DaemonFixture.with { fixture in
            try await FaultyProxy.with(before: fixture.connection) { proxy in
                try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .never }) { receiver in
                    try await fixture.addEndpoint("shop", receiver.url) { $0.timeout = .seconds(60) }
                    let through = [
                        "SIWAD_DATABASE_URL": proxy.conninfo(fixture.conninfo), "SIWAD_SHUTDOWN_GRACE": "3s",
                    ]
                    let first = fixture.start(try DaemonFixture.delivering(through))
                    _ = try await first.ready()
                    try await fixture.revoke(20)
                    try await eventually("the requests") { receiver.messages.count == 8 }
                    try await proxy.now(.holdEverything)
                    receiver.answer { _, _ in .status(200) }
                    try await fixture.withDaemon(try DaemonFixture.delivering()) { _, _ in
                        try await fixture.untilDelivered("shop delivered 12", "shop pending 8")
                        let expiry = "UPDATE siwa.deliveries SET claimed_until = now() WHERE claim IS NOT NULL"
                        try await fixture.run(expiry)
                        try await fixture.untilDelivered("shop delivered 20")
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
