import AppleSimulator
import TestSupport
import Testing

@Suite("Shutdown of the daemon", .timeLimit(.minutes(10)))
struct ShutdownTests {
    private static let graceEnded = "the grace period ended; requests without a response may be lost"

    @Test("At SIGTERM readiness drops, accepted requests are stored and answered, and the exit code is 0.")
    func drain() async throws {
        // Alone on the machine: requests are given up after 20 seconds, which these steps can take under other load.
        try await MachineLock.withLock {
            try await DaemonFixture.withDaemon { fixture, daemon, addresses in
                try await fixture.stallCommits()
                let body = try fixture.body(fixture.event(id: "under way"))
                async let response = Web.post(body, to: addresses.notifications)
                try await fixture.untilStalled()
                daemon.send("TERM")
                try await eventually("readiness to drop") {
                    try await Web.get(addresses.operations + "/readyz").status == 503
                }
                #expect(try await Web.get(addresses.operations + "/livez").status == 200)
                try await eventually("connections to be refused") {
                    do {
                        _ = try await Web.post("{}", to: addresses.notifications)
                        return false
                    } catch {
                        return true
                    }
                }
                #expect(daemon.status == nil)
                try await fixture.letCommit()
                let drained = try await response
                #expect(drained.status == 200)
                #expect(drained.fields["connection"] == "close")
                #expect(try await daemon.end() == 0)
                #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["under way"])
                #expect(daemon.log.last?.contains("\"stopped\"") == true)
                #expect(!daemon.log.contains { $0.contains(Self.graceEnded) })
            }
        }
    }

    @Test(
        "At SIGTERM or SIGINT an idle daemon ends immediately with 0, and closes its connections.",
        arguments: ["TERM", "INT"]
    )
    func idle(signal: String) async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            // A keep-alive connection must not delay the end.
            #expect(try await Web.post("{}", to: addresses.notifications).status == 400)
            daemon.send(signal)
            #expect(try await daemon.end(within: .seconds(10)) == 0)
            try await eventually("the connections to be gone") {
                try await fixture.texts(
                    "SELECT application_name FROM pg_stat_activity"
                        + " WHERE datname = current_database() AND application_name = 'siwad'"
                ).isEmpty
            }
        }
    }

    @Test("After the grace period the daemon ends although a commit is stalled, without a 200, and logs a warning.")
    func grace() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_SHUTDOWN_GRACE": "1s"]) { fixture, daemon, addresses in
            try await fixture.stallCommits()
            let body = try fixture.body(fixture.event())
            async let response = try? Web.post(body, to: addresses.notifications)
            try await fixture.untilStalled()
            daemon.send("TERM")
            // Less than the 20 s after which the writer gives a stalled commit up.
            #expect(try await daemon.end(within: .seconds(12)) == 0)
            #expect(daemon.log.contains { $0.contains(Self.graceEnded) })
            let status = await response?.status
            #expect(status != 200)
            try await fixture.letCommit()
        }
    }

    @Test(
        "The daemon ends with the grace period although PostgreSQL refuses the outcomes of deliveries, and rarely asks it."
    )
    func unstoredOutcomes() async throws {
        try await DaemonFixture.with { fixture in
            try await FaultyProxy.with(before: fixture.connection) { proxy in
                try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .never }) { receiver in
                    try await fixture.addEndpoint("shop", receiver.url)
                    try await fixture.revoke(1)
                    let settings = [
                        "SIWAD_DATABASE_URL": proxy.conninfo(fixture.conninfo), "SIWAD_SHUTDOWN_GRACE": "6s",
                    ]
                    let daemon = fixture.start(try DaemonFixture.delivering(settings))
                    let addresses = try await daemon.ready()
                    try await eventually("the request") { receiver.messages.count == 1 }
                    try await fixture.closeDatabase()
                    await receiver.close()
                    // Keeps the endpoint from ending before the grace period does.
                    let port = Int(addresses.notifications.split(separator: "/")[1].split(separator: ":")[1]) ?? 0
                    let client = try await RawClient.connect(to: port, on: Web.eventLoops)
                    try await client.send(
                        "POST /apple/notifications HTTP/1.1\r\nHost: siwad\r\nContent-Length: 100\r\n\r\n{"
                    )
                    let before = try await proxy.connections.ever
                    daemon.send("TERM")
                    #expect(try await daemon.end(within: .seconds(18)) == 0)
                    #expect(try await proxy.connections.ever - before < 100)
                }
            }
        }
    }

    @Test("After kill -9 the next daemon serves immediately.")
    func killed() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            let body = try fixture.body(fixture.event(id: "again"))
            #expect(try await Web.post(body, to: addresses.notifications).status == 200)
            await daemon.kill()
            #expect(daemon.status == 137)
            try await fixture.withDaemon { _, addresses async throws in
                #expect(try await Web.post(body, to: addresses.notifications).status == 200)
            }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["again"])
        }
    }
}
