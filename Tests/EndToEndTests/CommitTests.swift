import AppleSimulator
import Synchronization
import Testing

@Suite("The commit", .timeLimit(.minutes(10)))
struct CommitTests {
    @Test("No 200 is on the wire while the commit is stalled; there is one as soon as it is done.")
    func stalled() async throws {
        try await Scene.withDaemon { scene, _, addresses in
            try await scene.stallCommits()
            let answered = Mutex(false)
            let body = try scene.body(scene.event(id: "stalled"))
            async let answer = {
                let answer = try await Web.post(body, to: addresses.notifications)
                answered.withLock { $0 = true }
                return answer
            }()
            try await scene.untilStalled()
            // The endpoint goes on answering what needs no commit, so an answer on its way would have come by now.
            for _ in 0..<5 { #expect(try await Web.post("{}", to: addresses.notifications).status == 400) }
            #expect(!answered.withLock { $0 })
            #expect(try await scene.isUntouched())
            try await scene.letCommit()
            #expect(try await answer.status == 200)
            #expect(try await scene.texts("SELECT jti FROM siwa.notifications") == ["stalled"])
        }
    }

    @Test("What waits during a commit is stored in one transaction, not in one for each.")
    func together() async throws {
        try await Scene.withDaemon { scene, _, addresses in
            try await scene.stallCommits()
            let bodies = try (0...50).map { try scene.body(scene.event(sub: "person\($0)")) }
            try await withThrowingTaskGroup(of: WebAnswer.self) { group in
                group.addTask { try await Web.post(bodies[0], to: addresses.notifications) }
                try await scene.untilStalled()
                for body in bodies.dropFirst() {
                    group.addTask { try await Web.post(body, to: addresses.notifications) }
                }
                let metrics = addresses.operations + "/metrics"
                try await eventually("all requests to be open") {
                    try await Web.get(metrics).body.contains("siwad_queue_depth 50\n")
                }
                try await scene.letCommit()
                for try await answer in group { #expect(answer.status == 200) }
            }
            let transactions = try await scene.texts(
                "SELECT count(*)::text FROM siwa.notifications GROUP BY xmin::text ORDER BY count(*)"
            )
            #expect(transactions == ["1", "50"])
        }
    }
}
