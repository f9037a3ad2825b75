import AppleSimulator
import JOSE
import TestSupport
import Testing

@Suite("What became of simulated notifications", .timeLimit(.minutes(10)))
struct SentFateTests {
    /// Runs a test with a function that runs `siwad simulate send` against a daemon.
    private func withSender(
        _ body: (
            DaemonFixture, _ send: ([String], [String: String]) async throws -> CommandRun, _ command: [String]
        ) async throws -> Void
    ) async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await TemporaryDirectory.with { directory in
                let key = try directory.write("key.pem", try fixture.apple.key.pem())
                let command = ["simulate", "send", addresses.notifications, "--key", key]
                try await body(fixture, { try await siwad(command + $0, environment: $1) }, command)
            }
        }
    }

    @Test("Each outcome is said in words, on a terminal within its width.")
    func outcomes() async throws {
        try await withSender { fixture, send, command in
            try await fixture.run(
                """
                SELECT siwa.record_sign_in('com.example.one', 'person', null, null, '2026-01-02T03:04:05Z');
                SELECT siwa.open_session('com.example.one', 'person', 'a-session', '2026-01-02T03:04:05Z');
                """
            )
            let revoked = ["--type", "consent-revoked", "--app", "com.example.one", "--sub", "person"]
            let database = ["SIWAD_DATABASE_URL": fixture.conninfo]
            let early = revoked + ["--event-time", "2026-01-01"]
            let long = String(repeating: "x", count: 300)
            let cases: [(arguments: [String], result: String)] = [
                (early, "superseded: the sign-in at 2026-01-02 03:04:05 UTC is newer"),
                (revoked + ["--jti", "one"], "applied: consent revoked, 1 session ended"),
                (revoked + ["--jti", "one"], "duplicate: a notification with this jti was stored before"),
                (
                    ["--type", "consent-revoked", "--app", "com.example.none"],
                    "dead-letter: unknown-audience: siwad dead-letters show 1 explains it"
                ),
                // A letter stores these claims cut.
                (
                    ["--type", "consent-revoked", "--app", "com.example.one", "--jti", long],
                    "dead-letter: malformed-claims: siwad dead-letters show 2 explains it"
                ),
                (
                    ["--type", "consent-revoked", "--app", "com.example.one", "--sub", long],
                    "dead-letter: malformed-claims: siwad dead-letters show 3 explains it"
                ),
                (
                    ["--type", "email-enabled", "--app", "com.example.one", "--count", "3"],
                    "3 × unchanged: this was known already"
                ),
            ]
            for (arguments, result) in cases {
                let sent = try await send(arguments, database)
                #expect(sent.status == 0, "\(sent.errors)")
                #expect(sent.lines.count == 2 && sent.lines.last == result[...], "\(sent.output)\(sent.errors)")
            }
            let narrow = try await siwadOnTerminal(command + early, columns: 50, environment: database)
            #expect(narrow.lines.count > 2 && narrow.lines.allSatisfy { $0.count <= 80 }, "\(narrow.output)")
        }
    }

    @Test("With --json the outcomes are counted; without a database they are null, and the exit code is the same.")
    func json() async throws {
        try await withSender { fixture, send, _ in
            let arguments = ["--type", "consent-revoked", "--app", "com.example.one", "--count", "4", "--json"]
            func outcomes(_ environment: [String: String]) async throws -> (JSONValue?, String) {
                let sent = try await send(arguments, environment)
                #expect(sent.status == 0)
                return (try JSONValue(parsing: Array(sent.output.utf8))["outcomes"], sent.errors)
            }
            let (found, _) = try await outcomes(["SIWAD_DATABASE_URL": fixture.conninfo])
            #expect(
                found?.compactText
                    == #"[{"outcome":"applied","detail":"consent revoked, 0 sessions ended","count":4}]"#
            )
            let (none, silence) = try await outcomes([:])
            #expect(none?.kind == .null && silence.isEmpty)
            let (unknown, note) = try await outcomes(["SIWAD_DATABASE_URL": "host=/nonexistent"])
            #expect(unknown?.kind == .null)
            #expect(note.contains("can't be looked up"))
        }
    }

    @Test("Of an accepted notification that the database does not have, the places are named where it may be.")
    func waiting() async throws {
        try await withSender { _, send, _ in
            try await DaemonFixture.with { other in
                let database = ["SIWAD_DATABASE_URL": other.conninfo]
                let sent = try await send(["--type", "consent-revoked", "--app", "com.example.one"], database)
                let places = "it waits in the spool, or the endpoint uses another database: siwad doctor says which"
                #expect(sent.status == 0 && sent.lines.last == "not-yet-stored: \(places)", "\(sent.output)")
            }
        }
    }

    @Test("A refusal is said with its reason, also without a database.")
    func refused() async throws {
        try await withSender { _, send, _ in
            try await TemporaryDirectory.with { directory in
                let key = try directory.write("stranger.pem", try SimulatedApple.generate().key.pem())
                let event = ["--type", "consent-revoked", "--app", "com.example.one", "--count", "2"]
                let sent = try await send(["--key", key] + event, [:])
                #expect(sent.status == 1)
                #expect(sent.lines.last?.hasPrefix("2 × refused: unknown-key: ") == true, "\(sent.output)")
            }
        }
    }
}
