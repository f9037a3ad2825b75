import Testing

@Suite("What another process does, a daemon learns without its poll of one second", .timeLimit(.minutes(10)))
struct DeliveryHintTests {
    /// Below the poll's second, and far above what a loaded machine needs.
    private static let prompt = Duration.milliseconds(400)

    /// The median of the times that `work` takes, which is repeated. The first one, during which the daemons may still start
    /// to listen, does not count. Without notifications each takes a second, because it starts when the poll has just been.
    private func median(of count: Int = 7, _ work: (Int) async throws -> Void) async throws -> Duration {
        var times: [Duration] = []
        for number in 0..<count {
            let start = ContinuousClock.now
            try await work(number)
            times.append(.now - start)
        }
        return times.dropFirst().sorted()[(count - 1) / 2]
    }

    /// The connections that listen to the dispatcher's channels.
    private func listeners(_ fixture: DaemonFixture) async throws -> Int {
        try await fixture.texts(
            """
            SELECT pid::text FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE 'LISTEN %siwa_endpoints%'
            """
        ).count
    }

    @Test("What one daemon publishes, another one delivers promptly.")
    func publications() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                // Without the key it publishes, and can't deliver.
                let url = try await fixture.start().ready().notifications
                _ = try await fixture.start(try DaemonFixture.delivering()).ready()
                let time = try await median { number in
                    let body = try fixture.body(fixture.event("consent-revoked", sub: "p\(number)"))
                    #expect(try await Web.post(body, to: url).status == 200)
                    try await eventually("the delivery") { receiver.messages.count == number + 1 }
                }
                #expect(time < Self.prompt)
                print("published by another daemon, delivered after \(time)")
            }
        }
    }

    @Test("What operators retry, resume and add is delivered promptly.")
    func operators() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                try await fixture.revoke(1)
                try await eventually("the delivery") { receiver.messages.count == 1 }
                var count = 1
                /// Measures from the end of a command to the delivery.
                func median(_ commands: (Int) -> [String]) async throws -> Duration {
                    var times: [Duration] = []
                    for number in 0..<5 {
                        var end = ContinuousClock.now
                        for command in commands(number) {
                            let words = command.split(separator: " ").map(String.init) + ["--note", "why"]
                            let environment = fixture.environment(try DaemonFixture.delivering())
                            let run = try await siwad(words, environment: environment)
                            #expect(run.status == 0, "\(command): \(run.errors)")
                            end = .now
                        }
                        count += 1
                        try await eventually("the delivery") { receiver.messages.count == count }
                        times.append(.now - end)
                    }
                    return times.sorted()[2]
                }
                let retried = try await median { _ in ["deliveries retry shop/2 --status delivered"] }
                let added = try await median { ["endpoints add late-\($0) --url \(receiver.url) --from-start"] }
                let resumed = try await median { _ in
                    ["endpoints pause shop", "endpoints seek shop --position 2", "endpoints resume shop"]
                }
                #expect([retried, added, resumed].allSatisfy { $0 < Self.prompt }, "\(retried) \(added) \(resumed)")
                print("delivered after retry \(retried), add \(added), resume \(resumed)")
            }
        }
    }

    @Test("One connection listens while there are endpoints, and none of the configured number is added for it.")
    func connections() async throws {
        try await DaemonFixture.with { fixture in
            let role = "listener_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(role) LOGIN IN ROLE siwad_daemon CONNECTION LIMIT 3")
            let settings = try DaemonFixture.delivering([
                "SIWAD_DATABASE_URL": "\(fixture.conninfo) user=\(role)", "SIWAD_DATABASE_CONNECTIONS": "3",
            ])
            try await fixture.withDaemon(settings) { daemon, addresses in
                try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                    #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
                    #expect(try await listeners(fixture) == 0)
                    try await fixture.addEndpoint("shop", receiver.url)
                    try await eventually("a listener") { try await listeners(fixture) == 1 }
                    // The checks use the connection that listens.
                    for number in 0..<20 {
                        #expect(try await Web.get(addresses.operations + "/readyz").status == 200)
                        let body = try fixture.body(fixture.event("consent-revoked", sub: "p\(number)"))
                        #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                    }
                    try await eventually("the deliveries") { receiver.messages.count == 20 }
                    try await fixture.run("DELETE FROM siwa.endpoints")
                    try await eventually("the end of the listener") { try await listeners(fixture) == 0 }
                    #expect(!daemon.log.contains { $0.contains("too many connections") })
                }
            }
            try await eventually("the daemon's connections to end") {
                try await fixture.texts("SELECT pid::text FROM pg_stat_activity WHERE usename = '\(role)'").isEmpty
            }
            try await fixture.run("DROP ROLE \(role)")
        }
    }

    @Test("After the loss of its connection, a daemon listens again, and misses nothing.")
    func reconnection() async throws {
        try await DaemonFixture.withDaemon(try DaemonFixture.delivering()) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.addEndpoint("shop", receiver.url)
                for round in 1...3 {
                    try await eventually("a listener") { try await listeners(fixture) == 1 }
                    try await fixture.endOtherConnections()
                    try await fixture.revoke(10)
                    try await eventually("the deliveries") { receiver.messages.count == round * 10 }
                }
            }
        }
    }
}
