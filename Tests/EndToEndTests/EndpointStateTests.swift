import AccountStore
import JOSE
import Testing

@Suite("The states of endpoints", .timeLimit(.minutes(2)))
struct EndpointStateTests {
    /// The value of a series with its labels; nil if the metrics don't contain it.
    private func value(_ series: String, _ metrics: String) -> Double? {
        let line = metrics.split(separator: "\n").first { $0.hasPrefix(series + " ") }
        return line?.split(separator: " ").last.flatMap { Double($0) }
    }

    @Test("Metrics and doctor tell enabled, open, paused and disabled endpoints apart, and count what waits.")
    func states() async throws {
        let settings = try DaemonFixture.delivering()
        try await DaemonFixture.with { fixture in
            for name in ["down", "fine", "gone", "held"] {
                try await fixture.addEndpoint(name, "http://127.0.0.1:1/") {
                    if name == "fine" { $0.types = ["siwa.account.deleted"] }
                }
            }
            try await fixture.revoke(3)
            try await fixture.run(
                """
                SELECT siwa.publish_changes();
                UPDATE siwa.endpoints SET status = 'disabled', status_reason = 'gone' WHERE name = 'gone';
                UPDATE siwa.endpoints SET status = 'paused', status_reason = 'operator' WHERE name = 'held';
                INSERT INTO siwa.endpoint_states AS s (endpoint_id, failing_since, open_until, probe_delay, last_reason)
                SELECT endpoint_id, now(), now() + interval '1 h', '300 s', 'unreachable'
                FROM siwa.endpoints WHERE name = 'down'
                ON CONFLICT (endpoint_id) DO UPDATE SET failing_since = excluded.failing_since,
                    open_until = excluded.open_until, probe_delay = excluded.probe_delay,
                    last_reason = excluded.last_reason;
                UPDATE siwa.deliveries AS d SET created_at = now() - interval '2 h'
                FROM siwa.endpoints AS e WHERE e.endpoint_id = d.endpoint_id AND e.name = 'held';
                UPDATE siwa.deliveries AS d SET status = 'dead', next_attempt_at = NULL, reason = 'failed',
                    first_failed_at = now()
                FROM siwa.endpoints AS e
                WHERE e.endpoint_id = d.endpoint_id AND e.name = 'gone'
                    AND d.position = (SELECT max(position) FROM siwa.changes)
                """
            )
            try await fixture.withDaemon(settings) { _, addresses in
                let states = ["down": "open", "fine": "enabled", "gone": "disabled", "held": "paused"]
                let waiting = ["down pending 3", "fine pending 0", "gone dead 1", "gone pending 2", "held pending 3"]
                var metrics = ""
                try await eventually("the metrics") {
                    metrics = try await Web.get(addresses.operations + "/metrics").body
                    return states.allSatisfy { name, current in
                        ["disabled", "enabled", "open", "paused"].allSatisfy { state in
                            let value = state == current ? 1 : 0
                            return metrics.contains(
                                "siwad_endpoint_state{endpoint=\"\(name)\",state=\"\(state)\"} \(value)\n"
                            )
                        }
                    }
                        && waiting.map { $0.split(separator: " ") }.allSatisfy {
                            metrics.contains("siwad_deliveries{endpoint=\"\($0[0])\",status=\"\($0[1])\"} \($0[2])\n")
                        }
                }
                #expect(value(#"siwad_endpoint_lag{endpoint="held"}"#, metrics) == 3)
                #expect(value(#"siwad_endpoint_lag{endpoint="fine"}"#, metrics) == 0)
                let age = try #require(value(#"siwad_endpoint_age_seconds{endpoint="held"}"#, metrics))
                #expect(age >= 7_200 && age < 7_320)
                #expect(value(#"siwad_endpoint_age_seconds{endpoint="fine"}"#, metrics) == 0)
            }
            let doctor = try await siwad(["doctor", "--json"], environment: fixture.environment(settings))
            let findings = try doctor.lines.map { try JSONValue(parsing: Array($0.utf8)) }
            let seen = findings.compactMap { finding -> String? in
                guard let check = finding["check"]?.string, ["endpoints", "deliveries"].contains(check) else {
                    return nil
                }
                return [finding["subject"]?.string, finding["status"]?.string].compactMap(\.self).joined(separator: " ")
            }
            #expect(seen.sorted() == ["down warn", "fine pass", "gone fail", "held warn", "warn"], "\(doctor.output)")
        }
    }
}
