import AccountStore
import AppleTokens
import AppleSimulator
import Basics
import Ingest
import JOSE
import StoreTestSupport
import Telemetry
import Testing

/// Each reason: made by the service, explained, its cause removed, replayed, its effect seen.
@Suite("Dead letters by reason")
struct DeadLetterReasonTests {
    @Test("Each reason has its gauge among the exported metrics, so that the alert about it can fire.")
    func exported() {
        let metrics = SiwadMetrics(version: "test", appIDs: [])
        for reason in DeadLetterReason.allCases { metrics.deadLetters.gauge(reason.rawValue).set(1) }
        let text = metrics.registry.prometheusText()
        for reason in DeadLetterReason.allCases {
            #expect(text.contains("\nsiwad_dead_letters{reason=\"\(reason.rawValue)\"} 1\n"))
        }
    }

    @Test("unknown-audience: names the entry to add; with it, the sessions end.")
    func unknownAudience() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let body = try fixture.body("account-deleted", app: "com.example.added")
            #expect(await fixture.client.answer(body) == .acknowledged)
            let advice = try await fixture.advice()
            #expect(advice.cause.contains("com.example.added"))
            #expect(advice.remedy.contains("TEAMID/com.example.added"))

            #expect(try await fixture.replay()?.lines == ["1 unknown-audience → unknown-audience"])
            let apps = try AudienceMap(parsing: "AAAAAAAAAA/com.example.one,CCCCCCCCCC/com.example.added")
            #expect(try await fixture.advice(apps: apps).remedy == "The app is in SIWAD_APPS by now: replay it.")
            #expect(try await fixture.replay(apps: apps)?.lines == ["1 unknown-audience → applied"])
            #expect(try await fixture.texts("SELECT state FROM siwa.account_states") == ["deleted"])
            let kept = try await fixture.letter()
            #expect(kept.letter.status == .replayed)
            #expect(kept.letter.attempts == 3)
            #expect(kept.letter.outcome == "applied")
            #expect(kept.earlierAttempts.map(\.operatorName) == [nil])
            #expect(try await fixture.texts("SELECT source FROM siwa.notifications") == ["replay"])
        }
    }

    @Test(
        "unknown-audience: what SIWAD_APPS can't hold isn't to be added there, but discarded.",
        arguments: ["", " ", "com.example.a b", "com.example.a,com.example.b", "com.example.a+com.example.b"]
    )
    func namelessAudience(_ app: String) async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            #expect(await fixture.client.answer(try fixture.body(app: app)) == .acknowledged)
            let advice = try await fixture.advice()
            #expect(advice.cause == "Apple signed it for the app “\(app)”, which was not in SIWAD_APPS.")
            #expect(!advice.remedy.contains("TEAMID/"))
            #expect(advice.command?.contains("dead-letters discard --id") == true)
        }
    }

    @Test("unknown-event-type: names the type; once siwad understands it, it is applied.")
    func unknownEventType() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            #expect(await fixture.client.answer(try fixture.body("account-frozen")) == .acknowledged)
            #expect(try await fixture.advice().cause.contains("account-frozen"))
            #expect(try await fixture.replay()?.lines == ["1 unknown-event-type → unknown-event-type"])
            // A siwad that understands it finds what this one finds in a token with a type that it knows.
            try await fixture.becomes(try fixture.body("consent-revoked"))
            #expect(try await fixture.replay()?.lines == ["1 unknown-event-type → applied"])
            #expect(try await fixture.texts("SELECT state FROM siwa.account_states") == ["revoked"])
        }
    }

    @Test("malformed-claims: says which; once siwad reads them, it is applied.")
    func malformedClaims() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let claims = #"{"iss":"https://appleid.apple.com","aud":"com.example.one","events":"{}"}"#
            let body = SimulatedApple.body(token: try fixture.apple.token(claims: claims))
            #expect(await fixture.client.answer(body) == .acknowledged)
            #expect(try await fixture.advice().cause.contains("“jti” is missing"))
            #expect(try await fixture.replay()?.lines == ["1 malformed-claims → malformed-claims"])
            try await fixture.becomes(try fixture.body("email-disabled"))
            #expect(try await fixture.replay()?.lines == ["1 malformed-claims → applied"])
            #expect(try await fixture.texts("SELECT email_deliverable::text FROM siwa.account_states") == ["false"])
        }
    }

    @Test("expired: says by how much; accepted late, what it says holds, but for newer sessions.")
    func expired() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let issued = WallTime.now() - .seconds(3 * 86_400)
            try await fixture.openSession("old", at: issued - .seconds(60))
            try await fixture.openSession("new", at: issued + .seconds(60))
            #expect(await fixture.client.answer(try fixture.body(issuedAt: issued)) == .acknowledged)
            let advice = try await fixture.advice()
            #expect(advice.cause.contains("2d after its “exp”"))
            #expect(advice.command?.contains("--accept-expired") == true)
            #expect(try await fixture.replay()?.lines == ["1 expired → expired"])
            #expect(try await fixture.replay(acceptsExpired: true)?.lines == ["1 expired → applied"])
            #expect(try await fixture.isLive("old") == false)
            #expect(try await fixture.isLive("new"))
            #expect(try await fixture.texts("SELECT state FROM siwa.account_states") == ["authorized"])
        }
    }

    @Test("expired: without an “exp” it says how long after its “iat” it came.")
    func expiredWithoutExpiry() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let issued = WallTime.now().wholeSeconds - 3 * 86_400
            let claims =
                #"{"iss":"https://appleid.apple.com","aud":"com.example.one","iat":\#(issued),"jti":"a","events":"#
                + #"{"type":"consent-revoked","sub":"person","event_time":\#(issued)}}"#
            let body = SimulatedApple.body(token: try fixture.apple.token(claims: claims))
            #expect(await fixture.client.answer(body) == .acknowledged)
            let detail = try await fixture.letter().letter.detail
            #expect(detail == "It arrived more than a day after the time in its claim “iat”, and has no “exp”.")
            let cause = try await fixture.advice().cause
            #expect(cause.hasPrefix("It has no “exp”, which makes it valid for a day, "), "\(cause)")
            #expect(cause.contains(" 3d after its “iat”"), "\(cause)")
            #expect(try await fixture.replay(acceptsExpired: true)?.lines == ["1 expired → applied"])
        }
    }

    @Test("not-yet-valid: says until when to wait; from then on, it is applied.")
    func notYetValid() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let now = WallTime.now()
            try await fixture.openSession(at: now - .seconds(60))
            #expect(await fixture.client.answer(try fixture.body(issuedAt: now + .seconds(7_200))) == .acknowledged)
            #expect(try await fixture.advice().remedy.contains("wait until"))
            #expect(try await fixture.replay()?.lines == ["1 not-yet-valid → not-yet-valid"])
            // An event in the future would win against all others until its time.
            let ahead = try await fixture.replay(acceptsExpired: true)
            #expect(ahead?.lines == ["1 not-yet-valid → not-yet-valid"])
            let later = now + .seconds(7_200)
            #expect(try await fixture.advice(now: later).remedy == "That time has come: replay it.")
            #expect(try await fixture.replay(now: { later })?.lines == ["1 not-yet-valid → applied"])
            #expect(try await fixture.isLive() == false)
        }
    }

    @Test("not-yet-valid: says until when to wait, in every spelling of events.")
    func notYetValidSpellings() async throws {
        let issued = WallTime.now().wholeSeconds
        let time = WallTime(seconds: issued + 7_200)
        let event = #"{"type":"consent-revoked","sub":"person","event_time":\#(time.wholeSeconds)}"#
        let text = JSONValue.quoted(event)
        for events in [event, text, "[\(event)]", "[\(text)]", JSONValue.quoted("[\(event)]")] {
            try await IngestFixture.with { fixture in
                await fixture.untilStoring()
                let claims =
                    #"{"iss":"https://appleid.apple.com","aud":"com.example.one","iat":\#(issued),"jti":"a","events":"#
                    + "\(events)}"
                let body = SimulatedApple.body(token: try fixture.apple.token(claims: claims))
                #expect(await fixture.client.answer(body) == .acknowledged)
                let remedy = try await fixture.advice().remedy
                #expect(remedy.contains("wait until \(time)"), "\(events): \(remedy)")
            }
        }
    }

    @Test("store-rejected: says what refused it; without that, it is applied.")
    func storeRejected() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT only_short CHECK (length(sub) < 3)")
            #expect(await fixture.client.answer(try fixture.body()) == .acknowledged)
            #expect(try await fixture.advice().cause.contains("only_short"))
            #expect(try await fixture.replay()?.lines == ["1 store-rejected → store-rejected"])
            try await fixture.run("ALTER TABLE siwa.accounts DROP CONSTRAINT only_short")
            #expect(try await fixture.replay()?.lines == ["1 store-rejected → applied"])
            #expect(try await fixture.texts("SELECT email_deliverable::text FROM siwa.account_states") == ["false"])
        }
    }

    @Test("keys-unavailable: verified by the current set and applied, although it has expired.")
    func keysUnavailable() async throws {
        try await IngestFixture.with { fixture in
            let rotated = try SimulatedApple.generate()
            try await fixture.keepWithoutKey(try fixture.body("email-disabled", signedBy: rotated))
            #expect(try await fixture.advice().remedy.contains("still not known"))
            #expect(try await fixture.replay()?.keyProblem == "the key endpoint is down")
            #expect(try await fixture.letter().letter.status == .open)
            fixture.endpoint.serve(rotated.keySetJSON)
            let later = WallTime.now() + .seconds(9 * 86_400)
            #expect(try await fixture.replay(now: { later })?.lines == ["1 keys-unavailable → applied"])
            #expect(try await fixture.texts("SELECT verified_kid FROM siwa.notifications") == [rotated.keyID])
            let letter = try await fixture.letter().letter
            #expect((letter.subject, letter.audience) == ("person", "com.example.one"), "or no erasure would find it")
            #expect(letter.verifiedKeyID == rotated.keyID)
        }
    }

    @Test("keys-unavailable: verified by a key that was seen since, while Apple can't be asked.")
    func keptKey() async throws {
        try await IngestFixture.with { fixture in
            let rotated = try SimulatedApple.generate()
            try await fixture.keepWithoutKey(try fixture.body("email-disabled", signedBy: rotated))
            try await fixture.keepKeys(of: rotated)
            #expect(try await fixture.advice().remedy.contains("The key is known by now"))
            #expect(try await fixture.replay()?.lines == ["1 keys-unavailable → applied"])
        }
    }

    @Test("keys-unavailable: a key that Apple had withdrawn before doesn't verify it.")
    func withdrawnKey() async throws {
        try await IngestFixture.with { fixture in
            let stolen = try SimulatedApple.generate()
            try await fixture.keepWithoutKey(try fixture.body("account-deleted", signedBy: stolen))
            try await fixture.keepKeys(of: stolen)
            try await fixture.run("UPDATE siwa.signing_keys SET last_seen = now() - interval '1 day'")
            #expect(try await fixture.replay()?.lines == ["1 keys-unavailable → keys-unavailable"])
            #expect(try await fixture.letter().letter.detail.contains("had left Apple's set"))
            #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
        }
    }

    @Test("keys-unavailable: a forgery stays open, and does nothing.")
    func forgery() async throws {
        try await IngestFixture.with { fixture in
            let rotated = try SimulatedApple.generate()
            let imposter = try SimulatedApple(key: try SimulatedApple.generate().key, keyID: rotated.keyID)
            try await fixture.keepWithoutKey(try fixture.body("account-deleted", signedBy: imposter))
            fixture.endpoint.serve(rotated.keySetJSON)
            #expect(try await fixture.replay()?.lines == ["1 keys-unavailable → keys-unavailable"])
            #expect(try await fixture.letter().letter.detail.contains("bad-signature"))
            #expect(try await fixture.texts("SELECT sub FROM siwa.accounts").isEmpty)
        }
    }

    @Test("keys-unavailable: one that is verified and can't be applied says by which key, and why not.")
    func verifiedInVain() async throws {
        try await IngestFixture.with { fixture in
            let rotated = try SimulatedApple.generate()
            try await fixture.keepWithoutKey(try fixture.body(app: "com.example.added", signedBy: rotated))
            fixture.endpoint.serve(rotated.keySetJSON)
            #expect(try await fixture.replay()?.lines == ["1 keys-unavailable → unknown-audience"])
            let letter = try await fixture.letter().letter
            #expect(letter.verifiedKeyID == rotated.keyID)
            #expect(letter.audience == "com.example.added")
        }
    }
}

extension IngestFixture {
    /// Sends a body while the key endpoint is down.
    fileprivate func keepWithoutKey(_ body: String) async throws {
        await untilStoring()
        endpoint.serve(nil)
        guard case .unavailable(.keysUnavailable, _) = await client.answer(body) else {
            Issue.record("expected keysUnavailable")
            return
        }
    }

    /// Puts another body into the only letter.
    fileprivate func becomes(_ body: String) async throws {
        try await run("UPDATE siwa.dead_letters SET body = convert_to('\(body)', 'UTF8')")
    }
}
