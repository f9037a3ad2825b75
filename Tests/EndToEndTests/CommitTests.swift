import AppleSimulator
import Synchronization
import Testing

@Suite("The commit", .timeLimit(.minutes(10)))
struct CommitTests {
    @Test("No 200 is sent while the commit is stalled, and one is sent as soon as the commit is done.")
    func stalled() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.stallCommits()
            let answered = Mutex(false)
            let body = try fixture.body(fixture.event(id: "stalled"))
            async let response = {
                let response = try await Web.post(body, to: addresses.notifications)
                answered.withLock { $0 = true }
                return response
            }()
            try await fixture.untilStalled()
            // The endpoint still answers requests without a commit, so a 200 on its way would have arrived by now.
            for _ in 0..<5 { #expect(try await Web.post("{}", to: addresses.notifications).status == 400) }
            #expect(!answered.withLock { $0 })
            #expect(try await fixture.isUntouched())
            try await fixture.letCommit()
            #expect(try await response.status == 200)
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["stalled"])
        }
    }

    @Test("Notifications that wait during a commit are stored in one transaction.")
    func together() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.stallCommits()
            let bodies = try (0...50).map { try fixture.body(fixture.event(sub: "person\($0)")) }
            try await withThrowingTaskGroup(of: WebResponse.self) { group in
                group.addTask { try await Web.post(bodies[0], to: addresses.notifications) }
                try await fixture.untilStalled()
                for body in bodies.dropFirst() {
                    group.addTask { try await Web.post(body, to: addresses.notifications) }
                }
                let metrics = addresses.operations + "/metrics"
                try await eventually("all requests to be open") {
                    try await Web.get(metrics).body.contains("siwad_queue_depth 50\n")
                }
                try await fixture.letCommit()
                for try await response in group { #expect(response.status == 200) }
            }
            let transactions = try await fixture.texts(
                "SELECT count(*)::text FROM siwa.notifications GROUP BY xmin::text ORDER BY count(*)"
            )
            #expect(transactions == ["1", "50"])
        }
    }
}
