import AppleSimulator
import TestSupport
import Testing

@Suite("Signals to the daemon", .timeLimit(.minutes(10)))
struct SignalTests {
    private static let one = "AAAAAAAAAA/com.example.one"

    @Test("SIGHUP: other apps take effect without a restart; a file that makes no sense changes nothing and is named.")
    func reload() async throws {
        try await Scene.with { scene in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("siwad.yaml", "apps: \(Self.one)\n")
                // The environment would win over the file.
                let daemon = scene.start(["SIWAD_APPS": ""], arguments: ["serve", "--config", file])
                let addresses = try await daemon.ready()
                let post = { (id: String) in
                    try await Web.post(
                        scene.body(scene.event("consent-revoked", app: "com.example.two", id: id)),
                        to: addresses.notifications
                    ).status
                }
                #expect(try await post("early") == 200)
                #expect(try await scene.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])

                _ = try directory.write("siwad.yaml", "apps: \(Self.one),AAAAAAAAAA/com.example.two+com.example.web\n")
                daemon.send("HUP")
                try await eventually("the configuration to be read anew") {
                    daemon.log.contains { $0.contains("\"configuration re-read\"") }
                }
                #expect(try await post("after") == 200)
                #expect(try await scene.texts("SELECT jti FROM siwa.notifications") == ["after"])
                let clients = try await scene.texts("SELECT client_id FROM siwa.clients ORDER BY 1")
                #expect(clients == ["com.example.one", "com.example.two", "com.example.web"])
                let metrics = try await Web.get(addresses.operations + "/metrics").body
                #expect(metrics.contains("siwad_last_notification_timestamp_seconds{app_id=\"com.example.two\"} "))

                _ = try directory.write("siwad.yaml", "apps: \(Self.one)\naps: nonsense\n")
                daemon.send("HUP")
                try await eventually("the refusal of the bad file") {
                    daemon.log.contains { $0.contains("the configuration was not re-read") && $0.contains("aps") }
                }
                #expect(try await post("still") == 200)
                let stored = try await scene.texts("SELECT jti FROM siwa.notifications ORDER BY jti")
                #expect(stored == ["after", "still"])
                #expect(daemon.status == nil)
            }
        }
    }

    @Test("A second SIGTERM ends the daemon at once, whatever is under way, and nobody was told 200.")
    func secondTermination() async throws {
        try await Scene.withDaemon(["SIWAD_SHUTDOWN_GRACE": "10m"]) { scene, daemon, addresses in
            try await scene.stallCommits()
            let body = try scene.body(scene.event())
            async let answer = try? Web.post(body, to: addresses.notifications)
            try await scene.untilStalled()
            daemon.send("TERM")
            try await eventually("readiness to drop") {
                try await Web.get(addresses.operations + "/readyz").status == 503
            }
            daemon.send("TERM")
            #expect(try await daemon.end(within: .seconds(30)) == 1)
            #expect(daemon.log.last?.contains("ended at once by a second signal") == true)
            let status = await answer?.status
            #expect(status == nil)
            try await scene.letCommit()
        }
    }
}
