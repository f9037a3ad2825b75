import AppleSimulator
import JOSE
import Synchronization
import Testing

@Suite("A flood of unknown keys", .timeLimit(.minutes(10)))
struct UnknownKeyTests {
    @Test("Ten thousand different ones cause no more fetches than the bucket allows and few letters, and stop nobody.")
    func flood() async throws {
        try await Turn.take {
            try await Scene.withDaemon { scene, daemon, addresses in
                let fetches = scene.endpoint.fetches
                let token = try scene.apple.token(for: scene.event())
                let rest = token.drop { $0 != "." }
                let numbers = Mutex(0..<10_000)
                let flood = Load(to: [addresses.notifications]) {
                    guard let number = numbers.withLock({ $0.popFirst() }) else { return nil }
                    let header = Base64URL.encode(Array("{\"kid\":\"unknown\(number)\",\"alg\":\"RS256\"}".utf8))
                    return Load.Item(id: "\(number)", body: header + rest)
                }
                async let flooding: Void = flood.run(connections: 16)
                var slowest = Duration.zero
                for number in 0..<50 {
                    let body = try scene.body(scene.event(sub: "person\(number)"))
                    let start = ContinuousClock.now
                    #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                    slowest = max(slowest, .now - start)
                    let goal = min(flood.answers + 100, 9_000)
                    try await eventually("the flood to go on") { flood.answers >= goal }
                }
                try await flooding
                print(
                    "unknown keys: \(scene.endpoint.fetches - fetches) fetches, a genuine one took \(slowest) at most"
                )
                // Five in a row, and one that is due by then.
                #expect(scene.endpoint.fetches - fetches <= 6)
                #expect(Set(flood.outcome.refused.values).isSubset(of: [401]))
                #expect(flood.outcome.unavailable.keys.sorted() == ["keys-unavailable"])
                #expect(flood.outcome.acknowledged.isEmpty)
                let letters = try await scene.texts(
                    "SELECT count(*)::text FROM siwa.dead_letters WHERE status = 'open'"
                )
                #expect((letters.first.flatMap { Int($0) } ?? .max) <= 1_000)
                #expect(try await scene.texts("SELECT count(*)::text FROM siwa.notifications") == ["50"])
                #expect(daemon.status == nil)
            }
        }
    }

    @Test("A rotation under it refuses no genuine notification for longer than the floor, and loses none.")
    func rotation() async throws {
        try await Turn.take {
            let settings = ["SIWAD_KEYS_REFRESH_FLOOR": "2s", "SIWAD_CLOCK_LEEWAY": "0s"]
            try await Scene.withDaemon(settings) { scene, daemon, addresses in
                let rest = try scene.apple.token(for: scene.event()).drop { $0 != "." }
                let numbers = Mutex(0..<1_100)
                let flood = Load(to: [addresses.notifications]) {
                    guard let number = numbers.withLock({ $0.popFirst() }) else { return nil }
                    let header = Base64URL.encode(Array("{\"kid\":\"unknown\(number)\",\"alg\":\"RS256\"}".utf8))
                    return Load.Item(id: "\(number)", body: header + rest)
                }
                try await flood.run(connections: 16)
                let rotated = try SimulatedApple.generate()
                scene.endpoint.now(.keySet(rotated.keySetJSON))
                let body = try scene.body(scene.event("account-deleted", id: "genuine"), signedBy: rotated)
                let start = ContinuousClock.now
                try await eventually("the genuine notification to be accepted") {
                    try await Web.post(body, to: addresses.notifications).status == 200
                }
                let refused = ContinuousClock.now - start
                print("a rotation under a flood: a genuine notification was refused for \(refused)")
                #expect(refused < .seconds(4))
                #expect(try await scene.texts("SELECT jti FROM siwa.notifications") == ["genuine"])
                try await eventually("the invented letters to be discarded") {
                    try await scene.texts("SELECT id::text FROM siwa.dead_letters WHERE status = 'open'").isEmpty
                }
                let actions = try await scene.texts("SELECT DISTINCT operator FROM siwa.operator_actions")
                #expect(actions == ["siwad"])
                #expect(daemon.status == nil)
            }
        }
    }
}
