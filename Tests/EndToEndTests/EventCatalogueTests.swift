import AppleSimulator
import JOSE
import Testing

@Suite("The catalogue of events", .timeLimit(.minutes(5)))
struct EventCatalogueTests {
    private static let address = "p@privaterelay.appleid.com"

    /// Lets each type of change happen to one person, in the order of ``expected``, and what is no change in between.
    private func live(_ fixture: DaemonFixture, _ url: String) async throws {
        func post(_ type: String, minutesAgo minutes: Int64, email: String? = nil) async throws {
            var event = fixture.event(type, sub: "p", secondsAgo: minutes * 60)
            event.email = email
            event.isPrivateEmail = email.map { _ in true }
            // The second time, it is a duplicate.
            for _ in 0..<2 { #expect(try await Web.post(fixture.body(event), to: url).status == 200) }
        }
        func signIn(minutesAgo minutes: Int64) async throws {
            try await fixture.run(
                """
                SELECT siwa.record_sign_in(
                    'com.example.one', 'p', '\(Self.address)', true, now() - interval '\(minutes) minutes'
                )
                """
            )
        }
        try await signIn(minutesAgo: 60)
        try await fixture.run("SELECT siwa.open_session('com.example.one', 'p', 'old', now() - interval '50 minutes')")
        try await signIn(minutesAgo: 40)
        try await post("consent-revoked", minutesAgo: 45)
        try await post("consent-revoked", minutesAgo: 30)
        try await post("consent-revoked", minutesAgo: 35)
        try await signIn(minutesAgo: 20)
        for id in ["one", "two", "three"] {
            try await fixture.run("SELECT siwa.open_session('com.example.one', 'p', '\(id)')")
        }
        let operatorName = fixture.environment(["LOGNAME": "sam"])
        let end = try await siwad(["sessions", "end", "one", "--note", "lost phone"], environment: operatorName)
        #expect(end.status == 0, "\(end.errors)")
        try await fixture.run("SELECT siwa.end_session('two', 'operator'), siwa.end_session('three')")
        try await post("email-disabled", minutesAgo: 15, email: Self.address)
        try await post("email-enabled", minutesAgo: 10, email: Self.address)
        try await post("email-disabled", minutesAgo: 12, email: Self.address)
        try await post("email-enabled", minutesAgo: 9, email: "other@privaterelay.appleid.com")
        try await post("account-deleted", minutesAgo: 5)
        await #expect(throws: (any Error).self) { try await signIn(minutesAgo: 1) }
    }

    private static let expected = [
        "siwa.consent.authorized app unknown authorized", "siwa.sessions.ended app authorized authorized",
        "siwa.consent.revoked app authorized revoked", "siwa.consent.authorized app revoked authorized",
        "siwa.sessions.ended app live ended", "siwa.sessions.ended app live ended",
        "siwa.email.forwarding_disabled team deliverable undeliverable",
        "siwa.email.forwarding_enabled team undeliverable deliverable", "siwa.account.deleted team active deleted",
    ]

    @Test(
        "Each change has the event that the JSON Schema describes, without an address; what changes nothing has none.",
        .enabled(if: PythonProgram.isAvailable, PythonProgram.missing)
    )
    func catalogue() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await live(fixture, addresses.notifications)
            try await eventually("the deletion") {
                try await fixture.texts("SELECT max(position)::text FROM siwa.changes") == ["\(Self.expected.count)"]
            }
            let arguments = ["changes", "follow", "--json", "--from-start", "--until-current"]
            let follow = try await siwad(arguments, environment: fixture.environment())
            let events = follow.lines.map(String.init)
            let summaries = try events.map { line in
                let event = try JSONValue(parsing: Array(line.utf8))
                let data = try #require(event["data"])
                return [event["type"], data["scope"], data["from"], data["to"]].compactMap { $0?.string }
                    .joined(separator: " ")
            }
            #expect(summaries == Self.expected, "\(follow.errors)")
            #expect(events[1].contains(#""sessions":{"ended":1,"#))
            #expect(events[1].contains(#""reason":"consent-revoked""#))
            #expect(events[4].contains(#""session_id":"one","reason":"operator""#))
            #expect(!follow.output.contains("@"))
            #expect(try await PythonProgram.problems(events) == "")
            let wrong = events[2].replacing(#""to":"revoked""#, with: #""to":"ended""#)
            #expect(try await PythonProgram.problems([wrong]).contains("is not valid under any of the given schemas"))
        }
    }
}
