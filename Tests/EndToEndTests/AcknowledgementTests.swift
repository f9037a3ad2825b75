import AppleSimulator
import Testing

@Suite("Responses with 200", .timeLimit(.minutes(10)))
struct AcknowledgementTests {
    /// 200 with an empty body.
    private func isAcknowledgement(_ response: WebResponse) -> Bool {
        response.status == 200 && response.body.isEmpty && response.fields["content-length"] == "0"
    }

    @Test("Every type of event is stored once and has its effect, even if Apple sends it again.")
    func everyType() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            let types = ["email-disabled", "email-enabled", "consent-revoked", "account-delete", "account-deleted"]
            for type in types {
                let body = try fixture.body(fixture.event(type, sub: "person of \(type)", id: "id of \(type)"))
                for _ in 0..<2 {
                    #expect(isAcknowledgement(try await Web.post(body, to: addresses.notifications)), "\(type)")
                }
            }
            let kept = try await fixture.texts(
                "SELECT event_type || ' ' || outcome || ' ' || source FROM siwa.notifications ORDER BY event_type"
            )
            #expect(
                kept == [
                    "account-delete applied endpoint", "account-deleted applied endpoint",
                    "consent-revoked applied endpoint", "email-disabled applied endpoint",
                    // Mail is forwarded until Apple reports otherwise.
                    "email-enabled unchanged endpoint",
                ]
            )
            let states = try await fixture.texts("SELECT sub || ' ' || state FROM siwa.account_states ORDER BY sub")
            #expect(
                states == [
                    "person of account-delete deleted", "person of account-deleted deleted",
                    "person of consent-revoked revoked", "person of email-disabled unknown",
                    "person of email-enabled unknown",
                ]
            )
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters").isEmpty)
        }
    }

    @Test("A revocation ends the open sessions, but no session of a later sign-in.")
    func sessions() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await fixture.run(
                """
                SELECT siwa.record_sign_in('com.example.web', 'person', signed_in_at => now() - interval '1 hour');
                SELECT siwa.open_session('com.example.web', 'person', 'old', now() - interval '1 hour');
                SELECT siwa.record_sign_in('com.example.one', 'person', signed_in_at => now() - interval '1 minute');
                SELECT siwa.open_session('com.example.one', 'person', 'fresh', now() - interval '1 minute');
                """
            )
            let body = try fixture.body(fixture.event("consent-revoked", secondsAgo: 600))
            #expect(isAcknowledgement(try await Web.post(body, to: addresses.notifications)))
            let sessions = try await fixture.texts(
                "SELECT session_id || ' ' || coalesce(end_reason, 'live') FROM siwa.sessions ORDER BY session_id"
            )
            #expect(sessions == ["fresh live", "old consent-revoked"])
            #expect(try await fixture.texts("SELECT state FROM siwa.account_states") == ["authorized"])
        }
    }

    @Test("A notification that is older than the stored state is stored as superseded.")
    func superseded() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            for (id, seconds) in [("later", 10), ("earlier", 100)] as [(String, Int64)] {
                let body = try fixture.body(fixture.event(id: id, secondsAgo: seconds))
                #expect(isAcknowledgement(try await Web.post(body, to: addresses.notifications)))
            }
            let kept = try await fixture.texts("SELECT jti || ' ' || outcome FROM siwa.notifications ORDER BY jti")
            #expect(kept == ["earlier superseded", "later applied"])
        }
    }

    @Test("A body is JSON, a form or a bare token by its content, whatever its Content-Type.")
    func bodies() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            for type in [nil, "application/json", "text/plain", "application/x-www-form-urlencoded"] {
                let bodies = try [
                    SimulatedApple.body(token: fixture.apple.token(for: fixture.event())),
                    "payload=" + fixture.apple.token(for: fixture.event()),
                    fixture.apple.token(for: fixture.event()),
                ]
                for body in bodies {
                    let response = try await Web.post(body, to: addresses.notifications, type: type)
                    #expect(isAcknowledgement(response), "\(type ?? "none"): \(body.prefix(12))")
                }
            }
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["12"])
        }
    }

    @Test("The events claim may be a string, an object or an array with one element.")
    func eventsClaim() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            let event = fixture.event("consent-revoked")
            for (index, events) in [event.eventObject, "[\(event.eventObject)]"].enumerated() {
                var event = event
                event.id = "\(index)"
                let claims = event.claims(issuer: fixture.apple.issuer, events: events)
                let body = SimulatedApple.body(token: try fixture.apple.token(claims: claims))
                #expect(isAcknowledgement(try await Web.post(body, to: addresses.notifications)))
            }
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications ORDER BY jti") == ["0", "1"])
        }
    }
}
