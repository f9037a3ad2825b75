import Postgres
import Testing

@Suite("Commands about refresh tokens", .timeLimit(.minutes(5)))
struct TokensCommandTests {
    /// Three tokens of two people; `web` is of the second client of the first person.
    private func prepare(_ fixture: DaemonFixture) async throws {
        try await fixture.run(
            """
            INSERT INTO siwa.clients VALUES
                ('com.example.one', 'com.example.one', 'AAAAAAAAAA'), ('com.example.web', 'com.example.one', 'AAAAAAAAAA')
            ON CONFLICT DO NOTHING;
            SELECT siwa.record_sign_in('com.example.one', sub) FROM unnest('{001.ada,002.dan,003.eve}'::text[]) AS sub;
            INSERT INTO siwa.apple_tokens (
                account_id, client_id, app_id, obtained_at, sealed, key_name, due_at, state, refusals
            )
            SELECT
                account_id, client, 'com.example.one', '2026-11-01T10:00:00Z', 'SECRET', key, '2026-11-02T11:00:00Z',
                state, CASE state WHEN 'refused' THEN 2 ELSE 0 END
            FROM (VALUES
                ('001.ada', 'com.example.one', 'valid', 'new'), ('001.ada', 'com.example.web', 'refused', 'new'),
                ('002.dan', 'com.example.one', 'unreadable', 'old')
            ) AS t (sub, client, state, key)
            JOIN siwa.accounts USING (sub)
            """
        )
    }

    @Test("tokens list shows the tokens that its options name, and no command prints a sealed text.")
    func list() async throws {
        try await DaemonFixture.with { fixture in
            try await prepare(fixture)
            let expected: [([String], [String])] = [
                ([], ["002.dan", "001.ada", "001.ada"]), (["--sub", "001"], ["001.ada", "001.ada"]),
                (["--client", "com.example.web"], ["001.ada"]), (["--state", "unreadable"], ["002.dan"]),
                (["--key", "new", "--app", "com.example.one", "--team", "AAAAAAAAAA"], ["001.ada", "001.ada"]),
                (["--limit", "1"], ["002.dan"]),
            ]
            for (arguments, subjects) in expected {
                let run = try await siwad(["tokens", "list"] + arguments, environment: fixture.environment())
                #expect(run.status == 0, "\(arguments): \(run.errors)")
                let rows = run.lines.dropFirst().map { $0.split(separator: " ").first.map(String.init) ?? "" }
                #expect(rows == subjects, "\(arguments)")
                let inJSON = ["tokens", "list", "--json"] + arguments
                let json = try await siwad(inJSON, environment: fixture.environment())
                #expect(json.lines.count == subjects.count)
                for output in [run.output, json.output] {
                    #expect(!output.contains("SECRET") && !output.contains("534543524554"))
                }
            }
            let none = try await siwad(["tokens", "list", "--key", "x"], environment: fixture.environment())
            #expect(none.status == 4 && none.errors.contains("no refresh tokens match"))
        }
    }

    @Test("tokens show names a person by the beginning of the sub, and says what the state of each token means.")
    func show() async throws {
        try await DaemonFixture.with { fixture in
            try await prepare(fixture)
            let ada = try await siwad(["tokens", "show", "001"], environment: fixture.environment())
            #expect(ada.status == 0, "\(ada.errors)")
            for text in [
                "refresh token of com.example.one, valid", "refresh token of com.example.web, refused",
                "the person has to sign in again", "2026-11-01 10:00:00 UTC", "sealed with  new",
            ] {
                #expect(ada.output.contains(text), "\(text): \(ada.output)")
            }
            let dan = try await siwad(["tokens", "show", "002.dan"], environment: fixture.environment())
            #expect(dan.output.contains("No key of SIWAD_SEALING_KEYS opened it") && !dan.output.contains("SECRET"))
            #expect(dan.output.contains("run siwad sealing rotate --note '…', or"), "\(dan.output)")
            let eve = try await siwad(["tokens", "show", "003.eve"], environment: fixture.environment())
            #expect(eve.status == 4 && eve.errors.contains("no refresh token of this person"))
        }
    }

    @Test("A member of siwad_reader lists refresh tokens, without a right to their sealed texts.")
    func reader() async throws {
        try await DaemonFixture.with { fixture in
            try await prepare(fixture)
            let name = "reader_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(name) LOGIN IN ROLE siwad_reader")
            let environment = fixture.environment(["SIWAD_DATABASE_URL": "\(fixture.conninfo) user=\(name)"])
            let run = try await siwad(["tokens", "list"], environment: environment)
            try await fixture.run("DROP ROLE \(name)")
            #expect(run.status == 0 && run.lines.count == 4, "\(run.errors)")
        }
    }
}
