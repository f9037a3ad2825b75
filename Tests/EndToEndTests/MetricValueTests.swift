import AppleSimulator
import Testing

@Suite("The values of metrics", .timeLimit(.minutes(10)))
struct MetricValueTests {
    @Test("Ended sessions are counted by reason; lag, commits and requests are measured in seconds.")
    func notifications() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.run(
                """
                SELECT siwa.record_sign_in('com.example.one', sub, NULL, NULL, now() - interval '1 hour')
                FROM unnest('{revoked,deleted}'::text[]) AS sub;
                SELECT siwa.open_session('com.example.one', sub, sub || n)
                FROM (VALUES ('revoked', 1), ('deleted', 1), ('deleted', 2)) AS opened (sub, n);
                """
            )
            let start = ContinuousClock.now
            for (type, sub) in [("consent-revoked", "revoked"), ("account-deleted", "deleted")] {
                let event = fixture.event(type, sub: sub, secondsAgo: 600)
                #expect(try await Web.post(fixture.body(event), to: addresses.notifications).status == 200)
            }
            // The response arrives first.
            try await eventually("the metrics of both") {
                let samples = try await MetricSamples(addresses)
                return samples["siwad_sessions_ended_total{reason=\"account-deleted\"}"] != 0
                    && samples["siwad_event_lag_seconds_count"] == 2
                    && samples["siwad_request_duration_seconds_count"] == 2
            }
            let samples = try await MetricSamples(addresses)
            let elapsed = (ContinuousClock.now - start) / Duration.seconds(1)
            let ended = samples.byLabel("siwad_sessions_ended_total").filter { $0.value > 0 }
            #expect(ended == ["consent-revoked": 1, "account-deleted": 2])
            // The event times are whole seconds.
            let lag = try #require(samples["siwad_event_lag_seconds_sum"])
            #expect(lag >= 1_200 && lag <= 1_200 + 2 * (elapsed + 1))
            // The two followed each other.
            #expect(samples["siwad_commit_duration_seconds_count"] == 2)
            for metric in ["commit", "request"] {
                let sum = try #require(samples["siwad_\(metric)_duration_seconds_sum"])
                #expect(sum > 0 && sum <= elapsed, "\(metric)")
            }
        }
    }

    @Test(
        "If dead letters can't be counted or deliveries can't be measured, the log says so.",
        arguments: [
            ("dead_letters", "open dead letters can't be counted"),
            ("deliveries", "the backlogs of endpoints can't be measured"),
        ]
    )
    func unmeasured(table: String, message: String) async throws {
        try await DaemonFixture.with { fixture in
            let daemon = fixture.start(try DaemonFixture.delivering())
            _ = try await daemon.ready()
            try await fixture.run("ALTER TABLE siwa.\(table) RENAME TO hidden")
            try await eventually("the warning") { daemon.log.contains { $0.contains(message) } }
            try await fixture.run("ALTER TABLE siwa.hidden RENAME TO \(table)")
        }
    }

    @Test("Fetches of the key set are counted by result, and the age of the keys grows while none succeeds.")
    func keys() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_KEYS_REFRESH": "100ms"]) { fixture, _, addresses in
            func fetches() async throws -> [String: Double] {
                try await MetricSamples(addresses).byLabel("siwad_key_fetches_total")
            }
            func age() async throws -> Double? { try await MetricSamples(addresses)["siwad_keys_age_seconds"] }
            let first = try await fetches()
            #expect(first["failure"] == 0 && first["rejected"] == 0 && first["success"] != 0, "\(first)")
            fixture.endpoint.now(.status(500))
            try await eventually("a failure") { try await fetches()["failure"] != 0 }
            let failing = try await fetches()
            try await eventually("the age to grow") { try await age() ?? 0 > 1 }
            let failed = try await fetches()
            #expect(failed["failure", default: 0] > failing["failure", default: 0], "\(failed)")
            #expect(failed["success"] == failing["success"] && failed["rejected"] == 0, "\(failed)")
            fixture.endpoint.now(.keySet("{}"))
            try await eventually("a rejected set") { try await fetches()["rejected"] != 0 }
            fixture.endpoint.now(.keySet(fixture.apple.keySetJSON))
            try await eventually("a success") {
                try await fetches()["success", default: 0] > failed["success", default: 0]
            }
            try await eventually("the age to fall") { try await age() ?? 60 < 1 }
        }
    }
}
