import AppleSimulator
import TestSupport
import Testing

@Suite("Settings that change what a daemon does", .timeLimit(.minutes(10)))
struct WiringTests {
    @Test("SIWAD_NOTIFICATION_PATH is the path of the endpoint, and the only one.")
    func notificationPath() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_NOTIFICATION_PATH": "/hooks/x"]) { fixture, _, addresses in
            let base = addresses.notifications.replacing("/hooks/x", with: "")
            let body = try fixture.body(fixture.event())
            #expect(try await Web.post(body, to: base + "/apple/notifications").status == 404)
            #expect(try await Web.post(body, to: base + "/hooks/x").status == 200)
        }
    }

    @Test("SIWAD_BATCH_LIMIT notifications are stored in one transaction at most.")
    func batchLimit() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_BATCH_LIMIT": "2"]) { fixture, _, addresses in
            let bodies = try (0...6).map { try fixture.body(fixture.event(sub: "person\($0)")) }
            try await fixture.stallCommits()
            try await withThrowingTaskGroup(of: WebResponse.self) { group in
                group.addTask { try await Web.post(bodies[0], to: addresses.notifications) }
                try await fixture.untilStalled()
                for body in bodies.dropFirst() {
                    group.addTask { try await Web.post(body, to: addresses.notifications) }
                }
                try await eventually("the others to wait") {
                    try await MetricSamples(addresses)["siwad_queue_depth"] == 6
                }
                try await fixture.letCommit()
                for try await response in group { #expect(response.status == 200) }
            }
            let transactions = try await fixture.texts(
                "SELECT count(*)::text FROM siwa.notifications GROUP BY xmin::text ORDER BY count(*)"
            )
            #expect(transactions == ["1", "2", "2", "2"])
        }
    }

    @Test("SIWAD_QUEUE_BYTES bounds the notifications that wait and that are being stored; the next is answered 503.")
    func queueBytes() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_QUEUE_BYTES": "128KiB"]) { fixture, _, addresses in
            // A token of 54 KiB: there is room for two.
            let padding = String(repeating: "x", count: 40_000)
            let bodies = try (0..<3).map { number in
                let claims = fixture.event(sub: "person\(number)").claims(issuer: fixture.apple.issuer)
                let token = try fixture.apple.token(claims: "{\"padding\":\"\(padding)\"," + claims.dropFirst())
                return SimulatedApple.body(token: token)
            }
            try await fixture.stallCommits()
            async let first = Web.post(bodies[0], to: addresses.notifications)
            try await fixture.untilStalled()
            async let second = Web.post(bodies[1], to: addresses.notifications)
            try await eventually("the second to wait") {
                try await MetricSamples(addresses)["siwad_queue_depth"] == 1
            }
            let third = try await Web.post(bodies[2], to: addresses.notifications)
            #expect(third.status == 503 && third.reason == "queue-full", "\(third)")
            try await fixture.letCommit()
            #expect(try await first.status == 200)
            #expect(try await second.status == 200)
        }
    }

    @Test("SIWAD_SPOOL_LIMIT bounds the spool; the next notification is answered 503.")
    func spoolLimit() async throws {
        try await TemporaryDirectory.with { directory in
            let settings = ["SIWAD_SPOOL_DIRECTORY": directory.file("spool"), "SIWAD_SPOOL_LIMIT": "4KiB"]
            try await DaemonFixture.withDaemon(settings) { fixture, _, addresses in
                try await fixture.closeDatabase()
                var statuses: [Int] = []
                while statuses.last != 503, statuses.count < 9 {
                    let body = try fixture.body(fixture.event())
                    statuses.append(try await Web.post(body, to: addresses.notifications).status)
                }
                // Each takes more than 512 bytes, and less than 4 KiB.
                #expect(statuses.first == 200 && statuses.last == 503, "\(statuses)")
                let samples = try await MetricSamples(addresses)
                let bytes = try #require(samples["siwad_spool_bytes"])
                #expect(bytes > 0 && bytes <= 4_096)
            }
        }
    }

    @Test("SIWAD_RETENTION and SIWAD_SESSION_RETENTION decide which months and which sessions are deleted.")
    func retention() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.run(
                """
                SELECT siwa.ensure_notification_partitions(now() - interval '80 days', now() - interval '80 days');
                SELECT siwa.record_sign_in('com.example.one', 'person');
                SELECT siwa.open_session('com.example.one', 'person', id) FROM unnest('{live,ended}'::text[]) AS id;
                SELECT siwa.end_session('ended');
                """
            )
            let month = try await fixture.texts(
                "SELECT 'siwa.notifications_' || to_char((now() - interval '80 days') AT TIME ZONE 'UTC', '\"y\"YYYY\"m\"MM')"
            )[0]
            let partition = "SELECT to_regclass('\(month)')::text"
            #expect(try await fixture.texts(partition) != ["NULL"])
            let settings = ["SIWAD_RETENTION": "40d", "SIWAD_SESSION_RETENTION": "0s"]
            try await fixture.withDaemon(settings) { _, _ in
                try await eventually("the month to be dropped") { try await fixture.texts(partition) == ["NULL"] }
                try await eventually("the ended session to be deleted") {
                    try await fixture.texts("SELECT session_id FROM siwa.sessions") == ["live"]
                }
            }
        }
    }
}
