import AppleSimulator
import Testing

@Suite("Notifications that Apple signed and siwad can't process", .timeLimit(.minutes(10)))
struct DeadLetterTests {
    /// A notification for each reason.
    private func letters(_ fixture: DaemonFixture) throws -> [(reason: String, token: String)] {
        var expired = fixture.event()
        expired.issuedAt -= 2 * 86_400
        var early = fixture.event()
        early.eventTime += 3_600_000
        return try [
            ("unknown-audience", fixture.apple.token(for: fixture.event(app: "com.example.unheard"))),
            ("unknown-event-type", fixture.apple.token(for: fixture.event("person-promoted"))),
            (
                "malformed-claims",
                fixture.apple.token(claims: fixture.event().claims(issuer: fixture.apple.issuer, events: "[]"))
            ),
            ("expired", fixture.apple.token(for: expired)),
            ("not-yet-valid", fixture.apple.token(for: early)),
            ("store-rejected", fixture.apple.token(for: fixture.event(sub: "poison"))),
        ]
    }

    @Test("Each delivery is answered 200 and kept once, as an open dead letter with its reason and the verifying key.")
    func kept() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'poison')")
            for (reason, token) in try letters(fixture) {
                for _ in 1...2 {
                    let response = try await Web.post(SimulatedApple.body(token: token), to: addresses.notifications)
                    #expect(response.status == 200 && response.body.isEmpty, "\(reason)")
                    let kept = try await fixture.texts(
                        """
                        SELECT status || ' ' || verified_kid FROM siwa.dead_letters
                        WHERE reason = '\(reason)' AND convert_from(body, 'UTF8') = '\(token)'
                        """
                    )
                    #expect(kept == ["open \(fixture.apple.keyID)"], "\(reason)")
                }
            }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.dead_letters") == ["6"])
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications").isEmpty)
            #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
        }
    }

    @Test("siwad_dead_letters is the number of open letters for each reason.")
    func counted() async throws {
        // A daemon also counts them after each fetch of the keys.
        try await DaemonFixture.withDaemon(["SIWAD_KEYS_REFRESH": "100ms"]) { fixture, _, addresses in
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'poison')")
            var open = ["keys-unavailable": 0.0]
            for (reason, token) in try letters(fixture) {
                let response = try await Web.post(SimulatedApple.body(token: token), to: addresses.notifications)
                #expect(response.status == 200, "\(reason)")
                open[reason] = 1
            }
            func untilCounted() async throws {
                try await eventually("the counts \(open)") {
                    try await MetricSamples(addresses).byLabel("siwad_dead_letters") == open
                }
            }
            func discard(_ filter: String...) async throws {
                let command = ["dead-letters", "discard"] + filter + ["--note", "seen"]
                let discarded = try await siwad(command, environment: fixture.environment())
                #expect(discarded.status == 0, "\(discarded.errors)")
            }
            try await untilCounted()
            for reason in ["expired", "store-rejected"] {
                try await discard("--reason", reason)
                open[reason] = 0
                try await untilCounted()
            }
            try await discard("--all")
            open = open.mapValues { _ in 0 }
            try await untilCounted()
        }
    }

    @Test("Above the limit of open letters of one reason the response is 503; other reasons are still kept.")
    func limit() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_DEAD_LETTER_LIMIT": "1"]) { fixture, _, addresses in
            func post(_ event: SimulatedEvent) async throws -> WebResponse {
                try await Web.post(fixture.body(event), to: addresses.notifications)
            }
            #expect(try await post(fixture.event(app: "com.example.unheard")).status == 200)
            let refused = try await post(fixture.event(app: "com.example.unheard"))
            #expect(refused.status == 503)
            #expect(refused.reason == "dead-letter-limit")
            #expect((refused.retryAfter ?? 0) > 0)
            #expect(try await post(fixture.event("person-promoted")).status == 200)
            #expect(try await post(fixture.event()).status == 200)
            let kept = try await fixture.texts("SELECT reason FROM siwa.dead_letters ORDER BY reason")
            #expect(kept == ["unknown-audience", "unknown-event-type"])
        }
    }
}
