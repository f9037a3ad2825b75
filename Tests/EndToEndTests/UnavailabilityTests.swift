import AppleSimulator
import Testing

@Suite("Notifications that can't be stored at present", .timeLimit(.minutes(10)))
struct UnavailabilityTests {
    /// Expects 503 with this reason and a Retry-After.
    private func isUnavailable(_ response: WebResponse, _ reason: String, within seconds: ClosedRange<Int>) -> Bool {
        response.status == 503 && response.reason == reason && response.retryAfter.map(seconds.contains) ?? false
    }

    @Test("While the key set can't be fetched, an unknown key is answered 503, and the body is kept once, unverified.")
    func keysUnavailable() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_KEYS_REFRESH_FLOOR": "1s"]) { fixture, _, addresses in
            let rotated = try SimulatedApple.generate()
            fixture.endpoint.now(.status(500))
            let body = try fixture.body(fixture.event("consent-revoked"), signedBy: rotated)
            for _ in 0..<3 {
                let response = try await Web.post(body, to: addresses.notifications)
                #expect(isUnavailable(response, "keys-unavailable", within: 1...60), "\(response)")
            }
            let kept = try await fixture.texts(
                "SELECT reason || ' ' || (verified_kid IS NULL) FROM siwa.dead_letters WHERE status = 'open'"
            )
            #expect(kept == ["keys-unavailable true"])
            #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
            // Known keys are not affected, and the unknown one is accepted once it can be fetched.
            #expect(
                try await Web.post(fixture.body(fixture.event(id: "known")), to: addresses.notifications).status == 200
            )
            fixture.endpoint.now(.keySet(rotated.keySetJSON))
            try await eventually("the rotated key to be known") {
                try await Web.post(body, to: addresses.notifications).status == 200
            }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["2"])
        }
    }

    @Test("Within the floor after a fetch, a second unknown key is answered 503 and causes no fetch.")
    func floor() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_KEYS_REFRESH_BURST": "1"]) { fixture, _, addresses in
            let first = try await Web.post(
                fixture.body(fixture.event(), signedBy: .generate()),
                to: addresses.notifications
            )
            #expect(first.status == 401)
            #expect(first.reason == "unknown-key")
            let fetches = fixture.endpoint.fetches
            let second = try await Web.post(
                fixture.body(fixture.event(), signedBy: .generate()),
                to: addresses.notifications
            )
            #expect(isUnavailable(second, "keys-unavailable", within: 1...60), "\(second)")
            #expect(fixture.endpoint.fetches == fetches)
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["keys-unavailable"])
        }
    }

    @Test(
        "While PostgreSQL is unavailable and there is no spool, requests are answered 503; afterwards they are accepted."
    )
    func databaseAway() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            let ready = addresses.operations + "/readyz"
            #expect(try await Web.get(ready).status == 200)
            func untilUp(is value: Double) async throws {
                try await eventually("siwad_database_up to be \(value)") {
                    try await MetricSamples(addresses)["siwad_database_up"] == value
                }
            }
            try await untilUp(is: 1)
            try await fixture.closeDatabase()
            let body = try fixture.body(fixture.event("consent-revoked"))
            let response = try await Web.post(body, to: addresses.notifications)
            #expect(isUnavailable(response, "database-unavailable", within: 1...60), "\(response)")
            #expect(try await Web.get(ready).status == 503)
            #expect(try await Web.get(addresses.operations + "/livez").status == 200)
            // The response arrives before siwad gives up the connection.
            try await untilUp(is: 0)
            #expect(try await fixture.isUntouched())
            // A forged request is refused without the database.
            #expect(try await Web.post("{}", to: addresses.notifications).status == 400)
            try await fixture.openDatabase()
            try await eventually("PostgreSQL to be used again") {
                try await Web.post(body, to: addresses.notifications).status == 200
            }
            try await untilUp(is: 1)
            #expect(try await Web.get(ready).status == 200)
            #expect(try await fixture.texts("SELECT outcome FROM siwa.notifications") == ["applied"])
            #expect(daemon.status == nil)
        }
    }

    @Test("With a full queue the response is 503, and the queued notifications are still stored.")
    func queueFull() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_QUEUE_LIMIT": "1"]) { fixture, _, addresses in
            try await fixture.stallCommits()
            let bodies = try (0..<3).map { try fixture.body(fixture.event(sub: "person\($0)", id: "\($0)")) }
            async let stalled = Web.post(bodies[0], to: addresses.notifications)
            try await fixture.untilStalled()
            // The queue has room for one of the two.
            let answers = try await withThrowingTaskGroup(of: WebResponse.self) { group in
                for body in bodies.dropFirst() {
                    group.addTask { try await Web.post(body, to: addresses.notifications) }
                }
                let refused = try await group.next()
                try await fixture.letCommit()
                return try await [refused, group.next()].compactMap(\.self)
            }
            #expect(answers.count == 2)
            #expect(isUnavailable(answers[0], "queue-full", within: 1...60), "\(answers[0])")
            #expect(answers[1].status == 200)
            #expect(try await stalled.status == 200)
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["2"])
        }
    }
}
