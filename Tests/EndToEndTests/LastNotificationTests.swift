import AppleSimulator
import TestSupport
import Testing

@Suite("The metric of the last notification", .timeLimit(.minutes(10)))
struct LastNotificationTests {
    private func series(_ app: String) -> String {
        "siwad_last_notification_timestamp_seconds{app_id=\"\(app)\"}"
    }

    @Test("After a restart it has the time that an earlier daemon stored, and apps without a notification have none.")
    func restart() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.withDaemon { _, addresses in
                let response = try await Web.post(fixture.body(fixture.event()), to: addresses.notifications)
                #expect(response.status == 200)
            }
            // Unlike any time that the next daemon could have itself.
            try await fixture.run("UPDATE siwa.notifications SET received_at = to_timestamp(1700000000)")
            try await fixture.withDaemon { _, addresses in
                var metrics = ""
                try await eventually("the metric") {
                    metrics = try await Web.get(addresses.operations + "/metrics").body
                    return metrics.contains(series("com.example.one") + " 1700000000\n")
                }
                #expect(!metrics.contains(series("com.example.two")))
            }
        }
    }
}
