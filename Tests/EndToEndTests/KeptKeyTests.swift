import AppleSimulator
import JOSE
import Testing

@Suite("Stored keys of an earlier run", .timeLimit(.minutes(10)))
struct KeptKeyTests {
    private func becomesReady(_ daemon: DaemonProcess) -> Bool {
        daemon.log.contains { $0.contains("\"ready\"") }
    }

    @Test("Keys of another SIWAD_KEYS_URL are not used.")
    func otherURL() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.withDaemon { _, addresses async throws in
                #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
            }
            fixture.endpoint.now(.status(503))
            // Another URL of the same endpoint.
            let other = ["SIWAD_KEYS_URL": fixture.endpoint.url + "?of=apple"]
            let daemon = fixture.start(other)
            try await eventually("the daemon to look for keys") {
                daemon.log.contains { $0.contains("key set could not be fetched") }
            }
            // Stored keys are read immediately; failed fetches are repeated at growing intervals.
            let fetches = fixture.endpoint.fetches
            try await eventually("more fetches") { fixture.endpoint.fetches >= fetches + 2 }
            #expect(!becomesReady(daemon))
            await daemon.kill()
            // With its own URL, the stored keys are still used.
            try await fixture.withDaemon { _, addresses async throws in
                #expect(try await Web.post(fixture.body(fixture.event()), to: addresses.notifications).status == 200)
            }
        }
    }

    @Test("Stored or fetched keys older than SIWAD_KEYS_MAXIMUM_AGE are not trusted, and siwad doctor reports it.")
    func tooOld() async throws {
        try await DaemonFixture.with { fixture in
            let settings = ["SIWAD_KEYS_MAXIMUM_AGE": "3s", "SIWAD_KEYS_REFRESH": "500ms"]
            try await fixture.withDaemon(settings) { daemon, addresses async throws in
                let ready = try await Web.get(addresses.operations + "/readyz?verbose").body
                #expect(ready.contains("fetched ") && ready.contains(" s ago"), "\(ready)")
                fixture.endpoint.now(.status(503))
                try await eventually("the keys to be too old") {
                    try await Web.get(addresses.operations + "/readyz").status == 503
                }
                // The attempt to fetch keys that follows reports it.
                try await eventually("the report") { daemon.log.contains { $0.contains("no longer trusted") } }
                let response = try await Web.post(fixture.body(fixture.event()), to: addresses.notifications)
                #expect(response.status == 503 && response.reason == "keys-unavailable", "\(response)")
                let run = try await siwad(["doctor", "--json"], environment: fixture.environment(settings))
                let finding = run.lines.first { $0.contains(#""check":"kept-keys""#) } ?? ""
                #expect(finding.contains(#""status":"fail""#) && finding.contains("is no longer trusted"), "\(finding)")
                fixture.endpoint.now(.keySet(fixture.apple.keySetJSON))
                try await eventually("the keys to be trusted again") {
                    try await Web.get(addresses.operations + "/readyz").status == 200
                }
            }
            fixture.endpoint.now(.status(503))
            // PostgreSQL may still run the last statement of the daemon, which stores the keys as just seen.
            try await eventually("the daemon's sessions to end") {
                try await fixture.texts(
                    "SELECT '' FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'siwad'"
                ).isEmpty
            }
            try await fixture.run("UPDATE siwa.signing_keys SET last_seen = now() - interval '1 hour'")
            let late = fixture.start(settings)
            let fetches = fixture.endpoint.fetches
            try await eventually("some fetches") { fixture.endpoint.fetches >= fetches + 3 }
            #expect(!becomesReady(late))
            await late.kill()
        }
    }
}
