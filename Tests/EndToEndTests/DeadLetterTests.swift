import AppleSimulator
import Testing

@Suite("What Apple signed and can't be processed", .timeLimit(.minutes(10)))
struct DeadLetterTests {
    /// A notification of each kind, by the reason under which it must be kept.
    private func letters(_ scene: Scene) throws -> [(reason: String, token: String)] {
        var expired = scene.event()
        expired.issuedAt -= 2 * 86_400
        var early = scene.event()
        early.eventTime += 3_600_000
        return try [
            ("unknown-audience", scene.apple.token(for: scene.event(app: "com.example.unheard"))),
            ("unknown-event-type", scene.apple.token(for: scene.event("person-promoted"))),
            (
                "malformed-claims",
                scene.apple.token(claims: scene.event().claims(issuer: scene.apple.issuer, events: "[]"))
            ),
            ("expired", scene.apple.token(for: expired)),
            ("not-yet-valid", scene.apple.token(for: early)),
            ("store-rejected", scene.apple.token(for: scene.event(sub: "poison"))),
        ]
    }

    @Test("is answered 200 each time and kept once, as an open dead letter with its reason and the verifying key.")
    func kept() async throws {
        try await Scene.withDaemon { scene, _, addresses in
            try await scene.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'poison')")
            for (reason, token) in try letters(scene) {
                for _ in 1...2 {
                    let answer = try await Web.post(SimulatedApple.body(token: token), to: addresses.notifications)
                    #expect(answer.status == 200 && answer.body.isEmpty, "\(reason)")
                    let kept = try await scene.texts(
                        """
                        SELECT status || ' ' || verified_kid FROM siwa.dead_letters
                        WHERE reason = '\(reason)' AND convert_from(body, 'UTF8') = '\(token)'
                        """
                    )
                    #expect(kept == ["open \(scene.apple.keyID)"], "\(reason)")
                }
            }
            #expect(try await scene.texts("SELECT count(*)::text FROM siwa.dead_letters") == ["6"])
            #expect(try await scene.texts("SELECT jti FROM siwa.notifications").isEmpty)
            #expect(try await scene.texts("SELECT sub FROM siwa.accounts").isEmpty)
        }
    }

    @Test("is answered 503 once as many of its reason are open as may be; other reasons are still kept.")
    func limit() async throws {
        try await Scene.withDaemon(["SIWAD_DEAD_LETTER_LIMIT": "1"]) { scene, _, addresses in
            func post(_ event: SimulatedEvent) async throws -> WebAnswer {
                try await Web.post(scene.body(event), to: addresses.notifications)
            }
            #expect(try await post(scene.event(app: "com.example.unheard")).status == 200)
            let refused = try await post(scene.event(app: "com.example.unheard"))
            #expect(refused.status == 503)
            #expect(refused.reason == "dead-letter-limit")
            #expect((refused.retryAfter ?? 0) > 0)
            #expect(try await post(scene.event("person-promoted")).status == 200)
            #expect(try await post(scene.event()).status == 200)
            let kept = try await scene.texts("SELECT reason FROM siwa.dead_letters ORDER BY reason")
            #expect(kept == ["unknown-audience", "unknown-event-type"])
        }
    }
}
