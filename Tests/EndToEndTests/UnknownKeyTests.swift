import AppleSimulator
import JOSE
import Synchronization
import Testing

@Suite("A flood of unknown keys", .timeLimit(.minutes(10)))
struct UnknownKeyTests {
    @Test("Ten thousand unknown keys cause few fetches and few dead letters, and delay no genuine notification.")
    func flood() async throws {
        try await MachineLock.withLock {
            try await DaemonFixture.withDaemon { fixture, daemon, addresses in
                let fetches = fixture.endpoint.fetches
                let token = try fixture.apple.token(for: fixture.event())
                let rest = token.drop { $0 != "." }
                let numbers = Mutex(0..<10_000)
                let flood = LoadRun(to: [addresses.notifications]) {
                    guard let number = numbers.withLock({ $0.popFirst() }) else { return nil }
                    let header = Base64URL.encode(Array("{\"kid\":\"unknown\(number)\",\"alg\":\"RS256\"}".utf8))
                    return LoadRun.Item(id: "\(number)", body: header + rest)
                }
                async let flooding: Void = flood.run(connections: 16)
                var slowest = Duration.zero
                for number in 0..<50 {
                    let body = try fixture.body(fixture.event(sub: "person\(number)"))
                    let start = ContinuousClock.now
                    #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                    slowest = max(slowest, .now - start)
                    let goal = min(flood.responses + 100, 9_000)
                    try await eventually("the flood to continue") { flood.responses >= goal }
                }
                try await flooding
                print(
                    "unknown keys: \(fixture.endpoint.fetches - fetches) fetches, a genuine one took \(slowest) at most"
                )
                // Five in a row, and one more that is due by then.
                #expect(fixture.endpoint.fetches - fetches <= 6)
                #expect(Set(flood.outcome.refused.values).isSubset(of: [401]))
                #expect(flood.outcome.unavailable.keys.sorted() == ["keys-unavailable"])
                #expect(flood.outcome.acknowledged.isEmpty)
                let letters = try await fixture.texts(
                    "SELECT count(*)::text FROM siwa.dead_letters WHERE status = 'open'"
                )
                #expect((letters.first.flatMap { Int($0) } ?? .max) <= 1_000)
                #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["50"])
                #expect(daemon.status == nil)
            }
        }
    }

    @Test("During a flood, a rotated key is refused for no longer than the floor, and no notification is lost.")
    func rotation() async throws {
        try await MachineLock.withLock {
            let settings = ["SIWAD_KEYS_REFRESH_FLOOR": "2s", "SIWAD_CLOCK_LEEWAY": "0s"]
            try await DaemonFixture.withDaemon(settings) { fixture, daemon, addresses in
                let rest = try fixture.apple.token(for: fixture.event()).drop { $0 != "." }
                let numbers = Mutex(0..<1_100)
                let flood = LoadRun(to: [addresses.notifications]) {
                    guard let number = numbers.withLock({ $0.popFirst() }) else { return nil }
                    let header = Base64URL.encode(Array("{\"kid\":\"unknown\(number)\",\"alg\":\"RS256\"}".utf8))
                    return LoadRun.Item(id: "\(number)", body: header + rest)
                }
                try await flood.run(connections: 16)
                let rotated = try SimulatedApple.generate()
                fixture.endpoint.now(.keySet(rotated.keySetJSON))
                let body = try fixture.body(fixture.event("account-deleted", id: "genuine"), signedBy: rotated)
                let start = ContinuousClock.now
                try await eventually("the genuine notification to be accepted") {
                    try await Web.post(body, to: addresses.notifications).status == 200
                }
                let refused = ContinuousClock.now - start
                print("a rotation under a flood: a genuine notification was refused for \(refused)")
                #expect(refused < .seconds(4))
                #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["genuine"])
                try await eventually("the invented letters to be discarded") {
                    try await fixture.texts("SELECT id::text FROM siwa.dead_letters WHERE status = 'open'").isEmpty
                }
                let actions = try await fixture.texts("SELECT DISTINCT operator FROM siwa.operator_actions")
                #expect(actions == ["siwad"])
                #expect(daemon.status == nil)
            }
        }
    }

    @Test(
        "Invented keys of notifications and of identity tokens share one budget of fetches, and genuine sign-ins succeed."
    )
    func sharedBudget() async throws {
        try await SigningFixture.with { fixture in
            let settings = ["SIWAD_KEYS_REFRESH_BURST": "1", "SIWAD_KEYS_REFRESH_FLOOR": "1h"]
            let notifications = try await fixture.ready("a", settings).ready().notifications
            #expect(try await fixture.post(fixture.device().request(session: "s1"), to: "a").status == 200)
            let fetches = fixture.daemons.endpoint.fetches
            let notification = try fixture.daemons.apple.token(for: fixture.daemons.event())
            let device = try await fixture.device()
            @Sendable func invented(_ kid: String, _ token: String) -> String {
                Base64URL.encode(Array("{\"kid\":\"\(kid)\",\"alg\":\"RS256\"}".utf8)) + token.drop { $0 != "." }
            }
            @Sendable func notify(_ kid: String) async throws -> WebResponse {
                try await Web.post(SimulatedApple.body(token: invented(kid, notification)), to: notifications)
            }
            @Sendable func signIn(_ kid: String) async throws -> WebResponse {
                let token = invented(kid, device.token)
                let forged = SigningFixture.Device(token: token, code: device.code, nonce: device.nonce)
                return try await fixture.post(forged.request(session: "s2"), to: "a")
            }

            let first = try await notify("first")
            #expect(first.status == 401 && first.reason == "unknown-key", "\(first.body)")
            #expect(fixture.daemons.endpoint.fetches == fetches + 1)
            // The same fetch has shown that there is no such key.
            let known = try await signIn("first")
            #expect(known.status == 422 && known.reason == "unknown-key", "\(known.body)")
            let outcomes = try await withThrowingTaskGroup(of: String.self) { group in
                for number in 0..<200 {
                    group.addTask {
                        let isNotification = number.isMultiple(of: 2)
                        let response = try await isNotification ? notify("n\(number)") : signIn("n\(number)")
                        return "\(response.status) \(response.reason ?? "")"
                    }
                }
                var outcomes: Set<String> = []
                for try await outcome in group { outcomes.insert(outcome) }
                return outcomes
            }
            #expect(outcomes == ["503 keys-unavailable"])
            let late = try await signIn("late")
            #expect(late.reason == "keys-unavailable" && 3_000...3_600 ~= (late.retryAfter ?? 0), "\(late.fields)")
            #expect(fixture.daemons.endpoint.fetches == fetches + 1)
            #expect(try await fixture.tokenRequests() == 1)
            #expect(try await fixture.post(device.request(session: "s2"), to: "a").status == 200)
        }
    }
}
