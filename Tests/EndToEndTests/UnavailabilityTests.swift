import AppleSimulator
import Testing

@Suite("What can't be kept at present", .timeLimit(.minutes(10)))
struct UnavailabilityTests {
    /// 503 for this reason, with a time to come back at.
    private func isUnavailable(_ answer: WebAnswer, _ reason: String, within seconds: ClosedRange<Int>) -> Bool {
        answer.status == 503 && answer.reason == reason && answer.retryAfter.map(seconds.contains) ?? false
    }

    @Test("While the key set can't be fetched, an unknown key is answered 503 and its body kept once, unverified.")
    func keysUnavailable() async throws {
        try await Scene.withDaemon(["SIWAD_KEYS_REFRESH_FLOOR": "1s"]) { scene, _, addresses in
            let rotated = try SimulatedApple.generate()
            scene.endpoint.now(.status(500))
            let body = try scene.body(scene.event("consent-revoked"), signedBy: rotated)
            for _ in 0..<3 {
                let answer = try await Web.post(body, to: addresses.notifications)
                #expect(isUnavailable(answer, "keys-unavailable", within: 1...60), "\(answer)")
            }
            let kept = try await scene.texts(
                "SELECT reason || ' ' || (verified_kid IS NULL) FROM siwa.dead_letters WHERE status = 'open'"
            )
            #expect(kept == ["keys-unavailable true"])
            #expect(try await scene.texts("SELECT sub FROM siwa.accounts").isEmpty)
            // Known keys are not affected, and the unknown one is served as soon as it can be known.
            #expect(try await Web.post(scene.body(scene.event(id: "known")), to: addresses.notifications).status == 200)
            scene.endpoint.now(.keySet(rotated.keySetJSON))
            try await eventually("the rotated key to be known") {
                try await Web.post(body, to: addresses.notifications).status == 200
            }
            #expect(try await scene.texts("SELECT count(*)::text FROM siwa.notifications") == ["2"])
        }
    }

    @Test("Within the floor of the last fetch a second unknown key is answered 503, not fetched for.")
    func floor() async throws {
        try await Scene.withDaemon(["SIWAD_KEYS_REFRESH_BURST": "1"]) { scene, _, addresses in
            let first = try await Web.post(
                scene.body(scene.event(), signedBy: .generate()),
                to: addresses.notifications
            )
            #expect(first.status == 401)
            #expect(first.reason == "unknown-key")
            let fetches = scene.endpoint.fetches
            let second = try await Web.post(
                scene.body(scene.event(), signedBy: .generate()),
                to: addresses.notifications
            )
            #expect(isUnavailable(second, "keys-unavailable", within: 1...60), "\(second)")
            #expect(scene.endpoint.fetches == fetches)
            #expect(try await scene.texts("SELECT reason FROM siwa.dead_letters") == ["keys-unavailable"])
        }
    }

    @Test("While PostgreSQL is away and there is no spool, requests are answered 503; afterwards they are taken again.")
    func databaseAway() async throws {
        try await Scene.withDaemon { scene, daemon, addresses in
            let ready = addresses.operations + "/readyz"
            #expect(try await Web.get(ready).status == 200)
            try await scene.closeDatabase()
            let body = try scene.body(scene.event("consent-revoked"))
            let answer = try await Web.post(body, to: addresses.notifications)
            #expect(isUnavailable(answer, "database-unavailable", within: 1...60), "\(answer)")
            #expect(try await Web.get(ready).status == 503)
            #expect(try await Web.get(addresses.operations + "/livez").status == 200)
            // The answer comes before the connection is given up.
            try await eventually("the metric to say so") {
                try await Web.get(addresses.operations + "/metrics").body.contains("siwad_database_up 0\n")
            }
            #expect(try await scene.isUntouched())
            // What isn't Apple's is refused without the database.
            #expect(try await Web.post("{}", to: addresses.notifications).status == 400)
            try await scene.openDatabase()
            try await eventually("PostgreSQL to be used again") {
                try await Web.post(body, to: addresses.notifications).status == 200
            }
            #expect(try await Web.get(ready).status == 200)
            #expect(try await scene.texts("SELECT outcome FROM siwa.notifications") == ["applied"])
            #expect(daemon.status == nil)
        }
    }

    @Test("A full queue is answered 503, and what is in it is still stored.")
    func queueFull() async throws {
        try await Scene.withDaemon(["SIWAD_QUEUE_LIMIT": "1"]) { scene, _, addresses in
            try await scene.stallCommits()
            let bodies = try (0..<3).map { try scene.body(scene.event(sub: "person\($0)", id: "\($0)")) }
            async let stalled = Web.post(bodies[0], to: addresses.notifications)
            try await scene.untilStalled()
            // There is room for one of the two.
            let answers = try await withThrowingTaskGroup(of: WebAnswer.self) { group in
                for body in bodies.dropFirst() {
                    group.addTask { try await Web.post(body, to: addresses.notifications) }
                }
                let refused = try await group.next()
                try await scene.letCommit()
                return try await [refused, group.next()].compactMap(\.self)
            }
            #expect(answers.count == 2)
            #expect(isUnavailable(answers[0], "queue-full", within: 1...60), "\(answers[0])")
            #expect(answers[1].status == 200)
            #expect(try await stalled.status == 200)
            #expect(try await scene.texts("SELECT count(*)::text FROM siwa.notifications") == ["2"])
        }
    }
}
