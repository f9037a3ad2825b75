import AppleTokens
import AppleSimulator
import Basics
import Testing

@testable import Ingest

@Suite("Keys and dead letters at receipt")
struct KeyAndDeadLetterTests {
    @Test("The first notification that needs a rotated key causes one fetch for all that wait.")
    func rotation() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let fetches = fixture.endpoint.fetches
            let rotated = try SimulatedApple.generate()
            fixture.endpoint.serve(rotated.keySetJSON)
            let bodies = try (0..<20).map { try fixture.body(sub: "person\($0)", signedBy: rotated) }
            let answers = await fixture.client.answers(bodies)
            #expect(answers.allSatisfy { $0 == .acknowledged })
            #expect(fixture.endpoint.fetches == fetches + 1)
        }
    }

    @Test("A key that a fresh set lacks is refused, and causes no other fetch within the floor.")
    func unknownKey() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let fetches = fixture.endpoint.fetches
            let body = try fixture.body(signedBy: try SimulatedApple.generate())
            #expect(await fixture.client.answer(body) == .refused(.unknownKey))
            #expect(await fixture.client.answer(body) == .refused(.unknownKey))
            #expect(fixture.endpoint.fetches == fetches + 1)
            #expect(try await fixture.texts("SELECT id::text FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test("While the key set can't be fetched, an unknown key is answered 503 and its token is stored once.")
    func endpointDown() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            fixture.endpoint.serve(nil)
            let body = try fixture.body(signedBy: try SimulatedApple.generate())
            for _ in 0..<3 {
                guard case .unavailable(.keysUnavailable, let seconds) = await fixture.client.answer(body) else {
                    Issue.record("expected keysUnavailable")
                    continue
                }
                #expect(seconds > 0)
            }
            let letters = try await fixture.texts(
                "SELECT reason || coalesce(verified_kid, ' unverified') FROM siwa.dead_letters"
            )
            #expect(letters == ["keys-unavailable unverified"])
            #expect(await fixture.client.answer(try fixture.body()) == .acknowledged)
        }
    }

    @Test("Notifications that wait for a key use at most 32 MiB, including the memory of their requests.")
    func waitersAreBounded() async throws {
        try await IngestFixture.with(burst: 2) { fixture in
            await fixture.untilStoring()
            let like = try fixture.body()
            let unknown = IngestFixture.body(like, naming: "unknown")
            let size = Submission.overhead + IngestFixture.token(in: unknown).utf8.count
            let room = KeySetCache.maximumWaitingBytes / size
            fixture.endpoint.hold()
            let answers = Task { await fixture.client.answers(Array(repeating: unknown, count: room + 200)) }
            // All are waiting or turned away before the endpoint answers.
            while await fixture.client.received < room + 200 { await Task.yield() }
            fixture.endpoint.release()
            let refused = await answers.value.count { $0 == .refused(.unknownKey) }
            #expect(refused == room)
        }
    }

    @Test("A signed notification that can't be processed is acknowledged and stored with its reason.")
    func deadLetters() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let bodies = [
                try fixture.body(app: "com.example.unheard.of"), try fixture.body("account-frozen"),
                SimulatedApple.body(
                    token: try fixture.apple.token(
                        claims: #"{"iss":"https://appleid.apple.com","aud":"com.example.one","events":"{}"}"#
                    )
                ),
            ]
            #expect(await fixture.client.answers(bodies) == [.acknowledged, .acknowledged, .acknowledged])
            let reasons = try await fixture.texts("SELECT reason FROM siwa.dead_letters ORDER BY reason")
            #expect(reasons == ["malformed-claims", "unknown-audience", "unknown-event-type"])
            let kept = try await fixture.texts("SELECT convert_from(body, 'UTF8') FROM siwa.dead_letters")
            #expect(kept.sorted() == bodies.map { IngestFixture.token(in: $0) }.sorted())
        }
    }

    @Test("At the limit of open letters of a reason, others are answered 503; a known one is still acknowledged.")
    func limit() async throws {
        var limits = IngestService.Limits()
        limits.deadLetters = 2
        try await IngestFixture.with(limits: limits) { fixture in
            await fixture.untilStoring()
            for index in 0..<2 {
                let answer = await fixture.client.answer(try fixture.body(app: "com.example.unheard\(index)"))
                #expect(answer == .acknowledged)
            }
            let refused = await fixture.client.answer(try fixture.body(app: "com.example.unheard9"))
            #expect(refused == .unavailable(.deadLetterLimit, retryAfterSeconds: 300))
            #expect(await fixture.client.answer(try fixture.body("account-frozen")) == .acknowledged)
        }
    }

    @Test("Forged, foreign and malformed requests store nothing.")
    func refused() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let imposter = try SimulatedApple(key: try SimulatedApple.generate().key, keyID: fixture.apple.keyID)
            let identityToken = try fixture.apple.identityToken(
                sub: "person",
                app: "com.example.one",
                issuedAt: WallTime.now().wholeSeconds
            )
            let answers = await fixture.client.answers([
                "", "{}", "a.b.c", try fixture.body(signedBy: imposter), SimulatedApple.body(token: identityToken),
            ])
            let rejections = answers.map { answer -> Rejection? in
                if case .refused(let rejection) = answer { rejection } else { nil }
            }
            #expect(
                rejections == [.malformedBody, .malformedBody, .malformedToken, .badSignature, .notANotification]
            )
            #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
            #expect(try await fixture.texts("SELECT id::text FROM siwa.dead_letters").isEmpty)
        }
    }
}
