import AppleTokens
import AppleSimulator
import JOSE
import Telemetry
import Testing

@testable import Ingest

@Suite("Apple's key endpoint", .timeLimit(.minutes(5)))
struct KeyEndpointTests {
    /// What no key set is, or none that has a key.
    static let nonsense = [
        "", "{", "[]", "null", "<html>Service Unavailable</html>", #"{"keys":[]}"#, #"{"keys":{}}"#, #"{"keys":[{}]}"#,
        #"{"keys":[],"keys":[]}"#, #"{"error":"server_error"}"#,
    ]

    @Test("An invalid key set changes nothing: the last good set stays in force, and known keys are not delayed.")
    func keepsLastGoodSet() async throws {
        try await IngestFixture.with(floor: .zero) { fixture in
            await fixture.untilStoring()
            for nonsense in Self.nonsense {
                fixture.endpoint.serve(nonsense)
                let unknown = try fixture.body(signedBy: try SimulatedApple.generate())
                guard case .unavailable(.keysUnavailable, _) = await fixture.client.answer(unknown) else {
                    Issue.record("an unknown key is answered 503 while the endpoint serves \(nonsense)")
                    continue
                }
                #expect(await fixture.client.answer(try fixture.body()) == .acknowledged)
            }
            #expect(fixture.service.keys.keys.keys.map(\.keyID) == [fixture.apple.keyID])
            #expect(fixture.metrics.keyFetches.counter("rejected").value >= Self.nonsense.count)
        }
    }

    @Test(
        "In a set with a weak key and an ambiguous kid, the good key is used; tokens of the others become dead letters."
    )
    func badKeysBesideGood() async throws {
        try await IngestFixture.with(floor: .zero) { fixture in
            await fixture.untilStoring()
            let (twin, otherTwin) = (try SimulatedApple.generate(), try SimulatedApple.generate())
            let impostor = try SimulatedApple(key: otherTwin.key, keyID: twin.keyID)
            let good = try SimulatedApple.generate()
            let weak = #"{"kty":"RSA","kid":"weak","use":"sig","alg":"RS256","n":"AQAB","e":"AQAB"}"#
            let keys = [twin, impostor, good].map { Self.keys(of: $0.keySetJSON) } + [weak]
            fixture.endpoint.serve(#"{"keys":[\#(keys.joined(separator: ","))]}"#)
            #expect(await fixture.client.answer(try fixture.body(signedBy: good)) == .acknowledged)
            for ambiguous in [twin, impostor] {
                let answer = await fixture.client.answer(try fixture.body(signedBy: ambiguous))
                guard case .unavailable(.keysUnavailable, _) = answer else {
                    Issue.record("a key that is there but can't be used is answered 503, not \(answer)")
                    continue
                }
            }
            let reasons = try await fixture.texts("SELECT reason FROM siwa.dead_letters")
            #expect(reasons == ["keys-unavailable", "keys-unavailable"])
            let unknown = try fixture.body(signedBy: try SimulatedApple.generate())
            #expect(await fixture.client.answer(unknown) == .refused(.unknownKey))
            #expect(fixture.service.keys.keys.keys.map(\.keyID) == [good.keyID])
            // Not with every fetch.
            #expect(fixture.endpoint.fetches > 3)
            #expect(fixture.log.count("a key of Apple's set is not usable") == 3)
            #expect(fixture.log.lines.contains { $0.contains("not usable") && $0.contains(twin.keyID) })
            // Its publisher mends the mistake.
            fixture.endpoint.serve(#"{"keys":[\#(Self.keys(of: twin.keySetJSON))]}"#)
            #expect(await fixture.client.answer(try fixture.body(id: "mended", signedBy: twin)) == .acknowledged)
        }
    }

    @Test("A key that the set lists twice, or also for another use, verifies signatures.")
    func listedTwice() async throws {
        try await IngestFixture.with(floor: .zero) { fixture in
            await fixture.untilStoring()
            for use in ["sig", "enc"] {
                let apple = try SimulatedApple.generate()
                let key = Self.keys(of: apple.keySetJSON)
                fixture.endpoint.serve(#"{"keys":[\#(key),\#(key.replacing("\"sig\"", with: "\"\(use)\""))]}"#)
                #expect(await fixture.client.answer(try fixture.body(id: use, signedBy: apple)) == .acknowledged)
            }
        }
    }

    @Test("A removed key verifies nothing.")
    func removedKey() async throws {
        try await IngestFixture.with(floor: .zero) { fixture in
            await fixture.untilStoring()
            let rotated = try SimulatedApple.generate()
            fixture.endpoint.serve(rotated.keySetJSON)
            #expect(await fixture.client.answer(try fixture.body(signedBy: rotated)) == .acknowledged)
            #expect(await fixture.client.answer(try fixture.body()) == .refused(.unknownKey))
        }
    }

    @Test("Ten thousand unknown kids cause at most two fetches, and delay no genuine notification.")
    func flood() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let fetches = fixture.endpoint.fetches
            let token = try fixture.body()
            let genuine = try (0..<20).map { try fixture.body(sub: "person\($0)") }
            for round in 0..<20 {
                let forged = (0..<500).map { Self.forged(kid: "kid\(round).\($0)", like: token) }
                async let refused = fixture.client.answers(forged)
                #expect(await fixture.client.answer(genuine[round]) == .acknowledged)
                #expect(await refused.allSatisfy { $0 != .acknowledged })
            }
            #expect(fixture.endpoint.fetches <= fetches + 2)
            // They are not verified, so few are stored.
            let kept = try await fixture.texts("SELECT count(*)::text FROM siwa.dead_letters")
            #expect(try #require(kept.first.flatMap { Int($0) }) <= 1_000)
        }
    }

    @Test("While the endpoint does not answer, notifications of known keys are stored, and the others wait.")
    func slow() async throws {
        try await IngestFixture.with(floor: .zero) { fixture in
            await fixture.untilStoring()
            let rotated = try SimulatedApple.generate()
            fixture.endpoint.serve(rotated.keySetJSON)
            fixture.endpoint.hold()
            let body = try fixture.body(signedBy: rotated)
            async let waiting = fixture.client.answer(body)
            await fixture.until { $0.endpoint.isHeld }
            #expect(await fixture.client.answer(try fixture.body(id: "known")) == .acknowledged)
            fixture.endpoint.release()
            #expect(await waiting == .acknowledged)
        }
    }

    /// The members of a key set's array.
    private static func keys(of set: String) -> String {
        guard let start = set.firstIndex(of: "["), let end = set.lastIndex(of: "]") else { return "" }
        return String(set[set.index(after: start)..<end])
    }

    /// A token of that form whose header names another key.
    private static func forged(kid: String, like body: String) -> String {
        let header = #"{"kid":"\#(kid)","alg":"RS256"}"#
        let parts = body.split(separator: ".", maxSplits: 1)
        return #"{"payload":"\#(base64URL(header)).\#(parts[1])"#
    }

    private static func base64URL(_ text: String) -> String {
        let digits = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
        var (bits, count, encoded) = (0, 0, "")
        for byte in text.utf8 {
            bits = bits << 8 | Int(byte)
            count += 8
            while count >= 6 {
                count -= 6
                encoded.append(digits[bits >> count & 63])
            }
        }
        if count > 0 { encoded.append(digits[bits << (6 - count) & 63]) }
        return encoded
    }
}
