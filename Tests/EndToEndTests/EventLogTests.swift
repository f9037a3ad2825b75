import AppleSimulator
import JOSE
import Synchronization
import Testing

@Suite("The log of events", .timeLimit(.minutes(10)))
struct EventLogTests {
    private func records(_ daemon: DaemonProcess, _ message: String) -> [JSONValue] {
        daemon.log.compactMap { line in
            guard let record = try? JSONValue(parsing: Array(line.utf8)),
                record["message"]?.string?.contains(message) == true
            else { return nil }
            return record
        }
    }

    @Test("A stored notification is a line with its effect and the account, and not the person or the address.")
    func stored() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            try await fixture.run(
                """
                SELECT siwa.record_sign_in('com.example.one', 'log-person', 'log@privaterelay.appleid.com', true,
                    now() - interval '1 hour');
                SELECT siwa.open_session('com.example.one', 'log-person', 'log-session', now() - interval '1 hour');
                """
            )
            let body = try fixture.body(fixture.event("consent-revoked", sub: "log-person", id: "first"))
            for _ in 0..<2 { #expect(try await Web.post(body, to: addresses.notifications).status == 200) }
            try await eventually("two lines") { records(daemon, "notification stored").count == 2 }
            let lines = records(daemon, "notification stored")
            let account = try await fixture.texts("SELECT account_id::text FROM siwa.accounts")
            #expect(lines.map { $0["outcome"]?.string } == ["applied", "duplicate"])
            #expect(lines[0]["level"]?.string == "info")
            #expect(lines[0]["type"]?.string == "consent-revoked")
            #expect(lines[0]["app"]?.string == "com.example.one")
            #expect(lines[0]["sessions_ended"]?.string == "1")
            #expect(lines.map { $0["account"]?.string } == [account[0], account[0]])
            #expect(lines[0]["jti"]?.string == "first")
            #expect(!daemon.log.contains { $0.contains("log-person") || $0.contains("log@") || $0.contains("eyJ") })
        }
    }

    @Test("A dead letter and a refusal are warnings with their reason.")
    func warnings() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            let unheard = try fixture.body(fixture.event(app: "com.example.unheard"))
            for _ in 0..<2 { #expect(try await Web.post(unheard, to: addresses.notifications).status == 200) }
            for _ in 0..<3 { #expect(try await Web.post("{}", to: addresses.notifications).status == 400) }
            try await eventually("both warnings") {
                !records(daemon, "became a dead letter").isEmpty && !records(daemon, "requests were refused").isEmpty
            }
            daemon.send("TERM")
            #expect(try await daemon.end() == 0)
            let letters = records(daemon, "became a dead letter: siwad dead-letters show 1 explains it")
            #expect(letters.map { $0["reason"]?.string } == ["unknown-audience"], "a repeated one is no other letter")
            #expect(letters.first?["level"]?.string == "warning")
            #expect(letters.first?["id"]?.string == "1")
            let refusals = records(daemon, "requests were refused")
            #expect(refusals.allSatisfy { $0["reason"]?.string == "malformed-body" })
            #expect(refusals.compactMap { $0["count"]?.string.flatMap { Int($0) } }.reduce(0, +) == 3)
        }
    }

    @Test("What PostgreSQL refuses is one warning with the cause; the number of the letter is information.")
    func rejection() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'poison')")
            let body = try fixture.body(fixture.event(sub: "poison"))
            #expect(try await Web.post(body, to: addresses.notifications).status == 200)
            try await eventually("both lines") { records(daemon, "became a dead letter").count == 2 }
            let lines = records(daemon, "became a dead letter").sorted { $0["id"] == nil && $1["id"] != nil }
            #expect(lines.map { $0["level"]?.string } == ["warning", "info"])
            #expect(lines[0]["detail"]?.string?.contains("constraint no_poison") == true)
            #expect(lines[1]["id"]?.string == "1")
        }
    }

    @Test("Under load some notifications have a line, and the others are counted.")
    func load() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            let count = 600
            let number = Mutex(0)
            let load = LoadRun(to: [addresses.notifications]) {
                let next = number.withLock { number -> Int? in
                    number += 1
                    return number <= count ? number : nil
                }
                guard let next else { return nil }
                let event = fixture.event(sub: "\(next)", id: "\(next)")
                return LoadRun.Item(id: event.id, body: try fixture.body(event))
            }
            try await load.run(connections: 16)
            #expect(load.acknowledged == count)
            daemon.send("TERM")
            #expect(try await daemon.end() == 0)
            let lines = records(daemon, "notification stored").count
            let others = records(daemon, " more in the last second: ")
            #expect(lines + others.compactMap { $0["count"]?.string.flatMap { Int($0) } }.reduce(0, +) == count)
            #expect(lines >= 50)
            let messages = others.compactMap { $0["message"]?.string }
            #expect(messages.contains { $0.hasSuffix(" email-disabled applied") }, "\(messages)")
        }
    }
}
