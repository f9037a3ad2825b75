import AccountStore
import FoundationEssentials
import Postgres
import StoreTestSupport
import Synchronization
import TestSupport
import Testing

@Suite("Deliveries to endpoints", .timeLimit(.minutes(10)))
struct DeliveryTests {
    @Test("Each change that an endpoint wants is delivered once, signed, with the id of the feed.")
    func delivered() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, daemon, addresses in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url + "?key=s3cret")
                try await fixture.revoke(50)
                try await fixture.untilDelivered("shop delivered 50")
                #expect(receiver.messages.count == 50)
                #expect(Set(receiver.messages.compactMap(\.id)).count == 50)
                #expect(receiver.messages.allSatisfy { $0.head.hasPrefix("POST /hooks?key=s3cret HTTP/1.1") })
                let host = "host: 127.0.0.1:\(receiver.port)\r\n"
                #expect(receiver.messages.allSatisfy { $0.head.lowercased().contains(host) })
                #expect(receiver.messages.allSatisfy { $0.head.contains("User-Agent: siwad/") })
                #expect(receiver.connections <= 8)
                let metrics = try await Web.get(addresses.operations + "/metrics").body
                #expect(metrics.contains(#"siwad_delivery_attempts_total{endpoint="shop",outcome="delivered"} 50"#))
                #expect(metrics.contains(#"siwad_endpoint_state{endpoint="shop",state="enabled"} 1"#))
                #expect(metrics.contains("siwad_effect_delay_seconds_count 50\n"))
                #expect(metrics.contains("siwad_delivery_duration_seconds_count 50\n"))
                #expect(!metrics.contains("s3cret") && !daemon.log.contains { $0.contains("s3cret") })
            }
        }
    }

    @Test("Each answer decides about its delivery: delivered, dead for a reason, or sent again without a lost attempt.")
    func answers() async throws {
        let answers: [WebhookReceiver.Answer] = [
            .status(204), .status(301, ["Location": "http://127.0.0.1/"]), .status(404), .status(500),
            .status(400, ["webhook-delivery": "abort-message"]), .status(429, ["Retry-After": "1"]),
        ]
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                answering: { message, number in
                    // The pause that is asked for is granted.
                    number > answers.count ? .status(200) : answers[Int(message.sub.dropFirst()) ?? 0]
                }
            ) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) {
                    $0.retries = []
                    $0.concurrency = 1
                }
                try await fixture.revoke(answers.count)
                try await fixture.untilDelivered("shop dead 4", "shop delivered 2")
                #expect(receiver.messages.count == 7)
                let rows = try await fixture.texts(
                    """
                    SELECT concat_ws(' ', a.sub, d.status, d.attempts, d.reason, d.http_status)
                    FROM siwa.deliveries AS d JOIN siwa.accounts AS a USING (account_id) ORDER BY d.position
                    """
                )
                #expect(
                    rows == [
                        "p0 delivered 1 204", "p1 dead 1 redirected 301", "p2 dead 1 refused 404",
                        "p3 dead 1 failed 500", "p4 dead 1 aborted 400", "p5 delivered 1 throttled 200",
                    ]
                )
            }
        }
    }

    @Test("A pause that the receiver asks for is kept, and uses up no attempt.", arguments: [429, 503])
    func throttled(_ status: Int) async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                answering: { _, number in number == 1 ? .status(status, ["Retry-After": "2"]) : .status(200) }
            ) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.retries = [] }
                try await fixture.revoke(1)
                // Without a time that can be read, the pause is a minute.
                try await fixture.untilDelivered("shop delivered 1", within: .seconds(30))
                #expect(receiver.messages.count == 2)
                #expect(Set(receiver.messages.compactMap(\.id)).count == 1)
                let hasWaited = "resolved_at - created_at >= interval '2 s'"
                let row = "SELECT concat_ws(' ', status, attempts, \(hasWaited)) FROM siwa.deliveries"
                #expect(try await fixture.texts(row) == ["delivered 1 t"])
            }
        }
    }

    @Test("A pause that the receiver asks for is kept although requests that were under way succeed after it.")
    func throttledWithOthersUnderWay() async throws {
        let arrivals = Mutex<[ContinuousClock.Instant]>([])
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                answering: { _, number in
                    arrivals.withLock { $0.append(.now) }
                    return number == 1 ? .status(429, ["Retry-After": "5"]) : .delayed(.milliseconds(200), 200)
                }
            ) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.concurrency = 8 }
                try await fixture.revoke(20)
                try await fixture.untilDelivered("shop delivered 20")
                #expect(receiver.messages.count == 21)
            }
        }
        let times = arrivals.withLock(\.self)
        #expect(times.count > 8 && times[8] - times[0] >= .milliseconds(4_900))
    }

    @Test("A redirect is not followed: the other listener sees nothing, and the next attempts wait for their times.")
    func redirected() async throws {
        let secret = try DaemonFixture.secret
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(secret) { other in
                let target = other.url
                try await WebhookReceiver.with(secret, answering: { _, _ in .status(307, ["Location": target]) }) {
                    receiver in
                    try await fixture.addEndpoint("shop", receiver.url) {
                        $0.retries = [.milliseconds(200), .milliseconds(400)]
                    }
                    try await fixture.revoke(1)
                    try await fixture.untilDelivered("shop dead 1")
                    #expect(receiver.messages.count == 3)
                    #expect(other.connections == 0)
                    let failures = try await fixture.texts(
                        "SELECT attempt || ' ' || reason || ' ' || http_status || ' ' || detail FROM siwa.delivery_attempts ORDER BY 1"
                    )
                    #expect(failures == (1...3).map { "\($0) redirected 307 answered 307" })
                    // A delay is up to 20 % shorter than configured.
                    let early = try await fixture.texts(
                        """
                        SELECT a.attempt || ' after ' || a.gap
                        FROM (
                            SELECT endpoint_id, attempt, attempted_at - lag(attempted_at) OVER (ORDER BY attempt) AS gap
                            FROM siwa.delivery_attempts
                        ) AS a JOIN siwa.endpoints AS e USING (endpoint_id)
                        WHERE a.gap < e.retries[a.attempt - 1] * 0.8
                        """
                    )
                    #expect(early == [])
                }
            }
        }
    }

    @Test("Hostile answers end within the timeout with a reason, and don't fill the memory.")
    func hostile() async throws {
        let secret = try DaemonFixture.secret
        let big = String(repeating: "x", count: 100_000)
        let status = "HTTP/1.1 200 OK\r\n"
        let cases: [(String, String, WebhookReceiver.Answer)] = [
            ("never", "timed-out", .never), ("drip", "timed-out", .dripping), ("reset", "unreachable", .reset),
            ("nonsense", "malformed-answer", .bytes("220 mail.example.com ESMTP\r\n")),
            // The size of a head and the number of its fields are limited, not only the size of a field.
            ("head", "malformed-answer", .endless("X-Long: \(big.prefix(60_000))\r\n", after: status)),
            ("fields", "malformed-answer", .endless("X-Short: x\r\n", after: status)),
            ("header", "malformed-answer", .bytes("HTTP/1.1 200 OK\r\nX-Long: " + big + big)),
            ("status", "malformed-answer", .bytes("HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n")),
        ]
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, daemon, _ in
            let process = try #require(daemon.processID)
            /// A value of proc(5), status, in KiB.
            func memory(_ name: String) throws -> Int {
                let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
                let line = status.split(separator: "\n").first { $0.hasPrefix("\(name):") }
                return try #require(line?.split(whereSeparator: \.isWhitespace).dropFirst().first.flatMap { Int($0) })
            }
            // The peak counts from here (proc(5)).
            _ = try await ChildProcess.run(["/bin/sh", "-c", "echo 5 >/proc/\(process)/clear_refs"])
            let before = try memory("VmRSS")
            for (name, reason, answer) in cases {
                try await WebhookReceiver.with(secret, answering: { _, _ in answer }) { receiver in
                    try await fixture.addEndpoint(name, receiver.url) {
                        $0.timeout = .seconds(2)
                        $0.retries = []
                    }
                    try await fixture.revoke(1)
                    try await eventually("an outcome of \(name)") {
                        try await fixture.texts(
                            """
                            SELECT d.reason FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id)
                            WHERE e.name = '\(name)' AND d.status = 'dead'
                            """
                        ).contains(reason)
                    }
                    try await fixture.run("UPDATE siwa.endpoints SET status = 'paused', status_reason = 'operator'")
                }
            }
            // A 2xx counts although its body has no end: the rest is not read.
            try await WebhookReceiver.with(
                secret,
                answering: { _, _ in .endless("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + big) }
            ) { receiver in
                try await fixture.addEndpoint("endless", receiver.url)
                try await fixture.revoke(1)
                try await eventually("the delivery") { try await fixture.deliveries().contains("endless delivered 1") }
            }
            // The peak: after a case, its memory may be free again.
            if Binary.isRelease { #expect(try memory("VmHWM") - before < 62_500) }
            #expect(daemon.status == nil)
        }
    }

    @Test(
        "The first attempts of a person's changes are in order; with ordering by person, none overtakes another.",
        arguments: [EndpointConfiguration.Ordering.attempt, .person, .none]
    )
    func ordering(_ ordering: EndpointConfiguration.Ordering) async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            let count = LongVariants.areWanted ? 10_000 : 1_000
            let seed = UInt64.random(in: 0...UInt64.max)
            try await WebhookReceiver.with(
                try DaemonFixture.secret,
                answering: { _, number in
                    var random = SeededGenerator(seed: seed &+ UInt64(number))
                    return .status(Int.random(in: 0..<8, using: &random) == 0 ? 500 : 200)
                }
            ) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) {
                    $0.ordering = ordering
                    $0.retries = Array(repeating: .milliseconds(20), count: 20)
                    $0.concurrency = 16
                }
                try await fixture.revoke(count, people: 50)
                try await fixture.untilDelivered("shop delivered \(count)", within: .seconds(120))
                let messages = receiver.messages
                #expect(Set(messages.map(\.position)).count == count)
                for (_, own) in Dictionary(grouping: messages, by: \.sub) {
                    var seen: Set<Int64> = []
                    let first = own.map(\.position).filter { seen.insert($0).inserted }
                    switch ordering {
                    case .attempt: #expect(first == first.sorted(), "seed \(seed)")
                    case .person: #expect(own.map(\.position) == own.map(\.position).sorted(), "seed \(seed)")
                    case .none: break
                    }
                }
            }
        }
    }

    @Test("An endpoint gets no more requests a second than its rate.")
    func rate() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url) { $0.rate = 20 }
                let start = ContinuousClock.now
                try await fixture.revoke(60)
                try await fixture.untilDelivered("shop delivered 60")
                // At most a second's requests are saved up.
                #expect(.now - start >= .seconds(1.9))
            }
        }
    }

    @Test("A delivery is deleted SIWAD_DELIVERY_RETENTION after its end, and its change stays in the log.")
    func retention() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.addEndpoint("shop", "http://127.0.0.1:1/")
            try await fixture.revoke(2)
            try await fixture.run("SELECT siwa.publish_changes()")
            try await fixture.run(
                """
                UPDATE siwa.deliveries
                SET status = 'delivered', next_attempt_at = NULL,
                    resolved_at = now() - CASE position WHEN 3 THEN interval '2 d' ELSE interval '12 h' END
                """
            )
            #expect(try await fixture.deliveryPositions() == ["3 delivered", "4 delivered"])
            let settings = try DaemonFixture.delivering(["SIWAD_DELIVERY_RETENTION": "1d"])
            try await fixture.withDaemon(settings) { _, _ in
                try await eventually("maintenance") {
                    try await fixture.texts("SELECT task FROM siwa.maintenance WHERE task = 'deliveries'").count == 1
                }
            }
            #expect(try await fixture.deliveryPositions() == ["4 delivered"])
            let log = "SELECT position::text FROM siwa.change_log ORDER BY position"
            #expect(try await fixture.texts(log) == ["1", "2", "3", "4"])
        }
    }

    /// Posts 20 revocations as Apple does, and returns the times until the responses in ascending order.
    private func responseTimes(_ fixture: DaemonFixture, _ url: String, _ name: String) async throws -> [Duration] {
        var times: [Duration] = []
        for number in 0..<20 {
            let body = try fixture.body(fixture.event("consent-revoked", sub: "\(name) \(number)"))
            let start = ContinuousClock.now
            #expect(try await Web.post(body, to: url).status == 200)
            times.append(.now - start)
        }
        return times.sorted()
    }

    @Test("While all tables of deliveries and publication are locked, Apple gets its 200 nearly as soon as before.")
    func locked() async throws {
        let lock = """
            SET LOCAL lock_timeout = 0;
            LOCK TABLE siwa.endpoints, siwa.endpoint_states, siwa.endpoint_secrets, siwa.deliveries, siwa.delivery_attempts,
                siwa.change_log, siwa.publication IN ACCESS EXCLUSIVE MODE
            """
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.withDaemon(try DaemonFixture.delivering()) { _, addresses in
                    let url = addresses.notifications
                    // The first requests take longer.
                    _ = try await responseTimes(fixture, url, "first")
                    let alone = try await responseTimes(fixture, url, "alone")
                    for number in 0..<4 { try await fixture.addEndpoint("dead-\(number)", "http://127.0.0.1:1/") }
                    try await fixture.revoke(20)
                    // Nothing is stored for the next seconds, so no statement can get into a deadlock with the lock.
                    try await eventually("the open circuits") {
                        try await fixture.texts(
                            """
                            SELECT concat_ws(' ', count(*), (SELECT count(claim) FROM siwa.deliveries))
                            FROM siwa.endpoint_states
                            WHERE open_until > now() + interval '2 s'
                            """
                        ) == ["4 0"]
                    }
                    var rounds = 0
                    try await database.withOpenTransaction { session throws(PostgresError) in
                        try session.execute(script: lock)
                    } _: {
                        let waiting = "\(DaemonFixture.ownLocks) AND locktype = 'relation' AND NOT granted"
                        try await eventually("the daemon to wait with all connections but the writer's") {
                            try await fixture.texts("SELECT DISTINCT pid::text \(waiting)").count >= 2
                        }
                        // Other tests may keep the machine busy during a round, but not during all of them.
                        try await eventually("responses nearly as soon as before") {
                            rounds += 1
                            let times = try await responseTimes(fixture, url, "locked \(rounds)")
                            #expect(times[19] < .seconds(2))
                            return times[10] <= alone[10] * 3 + .milliseconds(20)
                        }
                    }
                    try await eventually("their publication") {
                        let locked = "SELECT sub FROM siwa.changes WHERE sub LIKE 'locked %'"
                        return try await fixture.texts(locked).count == rounds * 20
                    }
                }
            }
        }
    }

    @Test("An address that is not public is refused with the setting that allows it, and a reload allows it.")
    func blocked() async throws {
        try await TemporaryDirectory.with { directory in
            try await DaemonFixture.with { fixture in
                let file = try directory.write("siwad.yaml", "{}")
                // The environment would override the file.
                let settings = try DaemonFixture.delivering(["SIWAD_DELIVERY_ALLOW": ""])
                let daemon = fixture.start(settings, arguments: ["serve", "--config", file])
                _ = try await daemon.ready()
                try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                    try await fixture.addEndpoint("shop", receiver.url.replacing("127.0.0.1", with: "localhost"))
                    try await fixture.addEndpoint("hex", receiver.url.replacing("127.0.0.1", with: "0x7f.1"))
                    try await fixture.revoke(1)
                    try await fixture.untilDelivered("hex dead 1", "shop dead 1")
                    #expect(receiver.connections == 0)
                    let details = try await fixture.texts(
                        "SELECT DISTINCT detail FROM siwa.delivery_attempts WHERE reason = 'blocked'"
                    )
                    #expect(
                        details.allSatisfy { $0.contains("is not a public address; SIWAD_DELIVERY_ALLOW=") },
                        "\(details)"
                    )
                    #expect(details.contains { $0.contains("127.0.0.1/32") })
                    _ = try directory.write("siwad.yaml", "delivery_allow: 127.0.0.1/32\n")
                    daemon.send("HUP")
                    try await eventually("the configuration to be read again") {
                        daemon.log.contains { $0.contains("\"configuration re-read\"") }
                    }
                    try await fixture.revoke(1)
                    try await fixture.untilDelivered(
                        "hex dead 1",
                        "hex delivered 1",
                        "shop dead 1",
                        "shop delivered 1"
                    )
                }
            }
        }
    }

    @Test("If the daemon's role may not read the endpoints, the log says so once, and nothing is lost.")
    func missingRight() async throws {
        try await DaemonFixture.with { fixture in
            let role = "limited_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(role) LOGIN IN ROLE siwad_daemon")
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.run("REVOKE SELECT ON siwa.endpoint_secrets FROM siwad_daemon")
                let settings = try DaemonFixture.delivering(["SIWAD_DATABASE_URL": "\(fixture.conninfo) user=\(role)"])
                try await fixture.withDaemon(settings) { daemon, _ in
                    func reports() -> Int { daemon.log.count { $0.contains("endpoints can't be read") } }
                    try await fixture.revoke(1)
                    try await eventually("the report") { reports() == 1 }
                    try await eventually("publication") { try await fixture.deliveries() == ["shop pending 1"] }
                    try await fixture.run("GRANT SELECT ON siwa.endpoint_secrets TO siwad_daemon")
                    try await fixture.untilDelivered("shop delivered 1")
                    #expect(reports() == 1)
                }
            }
            try await eventually("the daemon's connections to end") {
                try await fixture.texts("SELECT pid::text FROM pg_stat_activity WHERE usename = '\(role)'").isEmpty
            }
            try await fixture.run("DROP ROLE \(role)")
        }
    }
}
