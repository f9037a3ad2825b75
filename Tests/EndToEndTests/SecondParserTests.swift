import AppleSimulator
import JOSE
import Testing

/// Signed values reach PostgreSQL, which has its own rules for texts, numbers and sizes.
@Suite("Values that PostgreSQL might refuse", .timeLimit(.minutes(10)))
struct SecondParserTests {
    private struct Case: Sendable {
        let name: String
        let claims: String
        /// Nil: stored as a notification.
        let reason: String?
    }

    private func event(_ fixture: DaemonFixture, _ event: SimulatedEvent, _ change: (old: String, new: String))
        -> String
    {
        var text = event.claims(issuer: fixture.apple.issuer, events: event.eventObject)
        if let place = text.firstRange(of: change.old) { text.replaceSubrange(place, with: change.new) }
        return text
    }

    private func cases(_ fixture: DaemonFixture) -> [Case] {
        let strings: [(String, String, String?)] = [
            ("NUL as an escape", "\\u0000", "malformed-claims"),
            ("a lone high surrogate", "\\ud800", "malformed-claims"),
            ("a lone low surrogate", "\\udfff", "malformed-claims"),
            ("a raw control character", "\u{1}", "malformed-claims"),
            ("escaped control characters", "\\u0001\\u001f\\u007f\\u0085", nil),
            ("a noncharacter", "\\uffff\u{FFFE}", nil),
            ("the last character", "\u{10FFFF}\\udbff\\udfff", nil), ("combining marks", "e\u{301}\u{212A}", nil),
            ("right to left", "\u{202E}abc\u{2066}", nil), ("what SQL quotes with", "'\\\"\\\\$$;--", nil),
            ("an array in PostgreSQL's spelling", "{a,\\\"b\\\",NULL}", nil), ("a percent format", "%s%n%1$s", nil),
            ("256 bytes", String(repeating: "x", count: 249), nil),
            ("sixty thousand bytes", String(repeating: "x", count: 30_000), "malformed-claims"),
        ]
        var cases = strings.flatMap { name, text, reason in
            ["sub", "jti"].map { claim in
                let own = fixture.event()
                let old = claim == "sub" ? "\"sub\":\"person\"" : "\"jti\":\"\(own.id)\""
                let new = "\"\(claim)\":\"\(text)\(UInt32.random(in: 0...99_999))\""
                return Case(name: "\(name) in \(claim)", claims: event(fixture, own, (old, new)), reason: reason)
            }
        }
        let numbers = ["1e400", "-1e400", "9223372036854775808", "1e-400", String(repeating: "9", count: 5_000), "0.1"]
        for number in numbers {
            let own = fixture.event(id: SimulatedEvent.randomID())
            let old = "\"event_time\":\(own.eventTime)"
            cases.append(
                Case(
                    name: "event_time \(number.prefix(20))",
                    claims: event(fixture, own, (old, "\"event_time\":\(number)")),
                    reason: "malformed-claims"
                )
            )
            // A claim that siwad doesn't read may be any number.
            cases.append(
                Case(
                    name: "an unknown member \(number.prefix(20))",
                    claims: event(fixture, fixture.event(), ("{", "{\"unknown\":\(number),")),
                    reason: nil
                )
            )
        }
        for (depth, reason) in [(31, nil), (33, "malformed-claims"), (5_000, "malformed-claims")] as [(Int, String?)] {
            let nested = String(repeating: "[", count: depth) + String(repeating: "]", count: depth)
            cases.append(
                Case(
                    name: "\(depth) levels",
                    claims: event(fixture, fixture.event(), ("{", "{\"unknown\":\(nested),")),
                    reason: reason
                )
            )
        }
        return cases
    }

    @Test("Each is stored, or kept unchanged as a dead letter; none causes a 5xx or a failed batch.")
    func everything() async throws {
        try await DaemonFixture.withDaemon { fixture, daemon, addresses in
            let cases = cases(fixture)
            // Concurrently and among genuine notifications, so that they share batches.
            try await withThrowingTaskGroup(of: Void.self) { group in
                for (number, one) in cases.enumerated() {
                    let token = try fixture.apple.token(claims: one.claims)
                    let genuine = try fixture.body(fixture.event(sub: "genuine \(number)", id: "genuine \(number)"))
                    group.addTask {
                        let body = SimulatedApple.body(token: token)
                        let response = try await Web.post(body, to: addresses.notifications)
                        #expect(response.status == 200, "\(one.name)")
                        #expect(try await Web.post(genuine, to: addresses.notifications).status == 200)
                        let kept = try await fixture.texts(
                            """
                            SELECT reason FROM siwa.dead_letters
                            WHERE body = decode('\(hexadecimal(body))', 'hex')
                                OR convert_from(body, 'UTF8') = '\(token)'
                            """
                        )
                        #expect(kept == (one.reason.map { [$0] } ?? []), "\(one.name)")
                    }
                }
                try await group.waitForAll()
            }
            let stored = cases.count { $0.reason == nil } + cases.count
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.notifications") == ["\(stored)"])
            let longest = try await fixture.texts(
                "SELECT max(greatest(length(jti), length(sub), length(aud), length(detail)))::text FROM siwa.dead_letters"
            )
            #expect((longest.first.flatMap { Int($0) } ?? .max) <= 256)
            for line in daemon.log {
                let record = try JSONValue(parsing: Array(line.utf8))
                // A dead letter is a warning of its own, with the reason that is expected above.
                if record["message"]?.string?.hasPrefix("a notification became a dead letter: ") == true {
                    #expect(record["level"]?.string == "warning", "\(line)")
                    #expect(record["reason"]?.string != "store-rejected", "\(line)")
                    continue
                }
                let level = record["level"]?.string ?? ""
                #expect(!["warning", "error", "critical"].contains(level), "\(line)")
            }
            // An operator can list and show all of them.
            for arguments in [
                ["dead-letters", "list", "--json"], ["notifications", "list", "--json"], ["accounts", "list"],
            ] {
                let run = try await siwad(arguments + ["--limit", "200"], environment: fixture.environment())
                #expect(run.status == 0, "\(run.errors)")
            }
        }
    }

    private func hexadecimal(_ text: String) -> String {
        text.utf8.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }
}
