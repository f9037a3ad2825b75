import AppleSimulator
import JOSE
import Testing

@Suite("Keys of an earlier run", .timeLimit(.minutes(10)))
struct KeptKeyTests {
    private func becomesReady(_ daemon: DaemonProcess) -> Bool {
        daemon.log.contains { $0.contains("\"ready\"") }
    }

    @Test("are not taken for those of another SIWAD_KEYS_URL.")
    func otherURL() async throws {
        try await Scene.with { scene in
            try await scene.withDaemon { _, addresses async throws in
                #expect(try await Web.post(scene.body(scene.event()), to: addresses.notifications).status == 200)
            }
            scene.endpoint.now(.status(503))
            // A URL of the same endpoint, so that only its text differs.
            let other = ["SIWAD_KEYS_URL": scene.endpoint.url + "?of=apple"]
            let daemon = scene.start(other)
            try await eventually("the daemon to look for keys") {
                daemon.log.contains { $0.contains("key set could not be fetched") }
            }
            // Kept keys are read at once, failed fetches repeated after growing pauses.
            let fetches = scene.endpoint.fetches
            try await eventually("more fetches") { scene.endpoint.fetches >= fetches + 2 }
            #expect(!becomesReady(daemon))
            await daemon.kill()
            // Of its own URL they are still there.
            try await scene.withDaemon { _, addresses async throws in
                #expect(try await Web.post(scene.body(scene.event()), to: addresses.notifications).status == 200)
            }
        }
    }

    @Test("are not trusted once they are older than SIWAD_KEYS_MAXIMUM_AGE, nor are fetched ones; doctor says so.")
    func tooOld() async throws {
        try await Scene.with { scene in
            let settings = ["SIWAD_KEYS_MAXIMUM_AGE": "3s", "SIWAD_KEYS_REFRESH": "500ms"]
            try await scene.withDaemon(settings) { daemon, addresses async throws in
                let ready = try await Web.get(addresses.operations + "/readyz?verbose").body
                #expect(ready.contains("fetched ") && ready.contains(" s ago"), "\(ready)")
                scene.endpoint.now(.status(503))
                try await eventually("the keys to be too old") {
                    try await Web.get(addresses.operations + "/readyz").status == 503
                }
                #expect(daemon.log.contains { $0.contains("no longer trusted") })
                let answer = try await Web.post(scene.body(scene.event()), to: addresses.notifications)
                #expect(answer.status == 503 && answer.reason == "keys-unavailable", "\(answer)")
                let run = try await siwad(["doctor", "--json"], environment: scene.environment(settings))
                let finding = run.lines.first { $0.contains(#""check":"kept-keys""#) } ?? ""
                #expect(finding.contains(#""status":"fail""#) && finding.contains("is no longer trusted"), "\(finding)")
                scene.endpoint.now(.keySet(scene.apple.keySetJSON))
                try await eventually("the keys to be trusted again") {
                    try await Web.get(addresses.operations + "/readyz").status == 200
                }
            }
            scene.endpoint.now(.status(503))
            try await scene.run("UPDATE siwa.signing_keys SET last_seen = now() - interval '1 hour'")
            let late = scene.start(settings)
            let fetches = scene.endpoint.fetches
            try await eventually("some fetches") { scene.endpoint.fetches >= fetches + 3 }
            #expect(!becomesReady(late))
            await late.kill()
        }
    }
}
