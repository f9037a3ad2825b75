import AppleTokens
import Basics
import JOSE
import Postgres
import TestSupport
import Testing
import Webhooks

@Suite("Sealed secrets", .timeLimit(.minutes(5)))
struct SealingTests {
    let old: String
    let new: String

    init() throws {
        old = try SealingKeys.newLine(name: "old")
        new = try SealingKeys.newLine(name: "new")
    }

    private func secret(_ generation: Int) -> SealedSecret {
        SealedSecret(endpoint: 1, purpose: .hmac, generation: Int32(generation))
    }

    /// Makes an endpoint with `count` generations of a secret, sealed with a ring.
    func seal(_ count: Int, with lines: String..., in fixture: DaemonFixture) async throws {
        let keys = try SealingKeys(parsing: lines.joined(separator: "\n"))
        let rows = try (1...count).map { generation in
            let sealed = try secret(generation).seal("secret \(generation)", with: keys)
            return "(1, 'hmac', \(generation), convert_to('\(String(decoding: sealed, as: UTF8.self))', 'UTF8'), "
                + "'\(keys.first)', '00000000')"
        }
        try await fixture.run(
            """
            INSERT INTO siwa.endpoints (name, url) VALUES ('shop', 'https://shop.example.com/');
            INSERT INTO siwa.endpoint_secrets (endpoint_id, purpose, generation, sealed, key_id, fingerprint)
            VALUES \(rows.joined(separator: ", "))
            """
        )
    }

    func environment(_ fixture: DaemonFixture, _ lines: String...) -> [String: String] {
        fixture.environment(["SIWAD_SEALING_KEYS": lines.joined(separator: "\n")]).filter { !$0.value.isEmpty }
    }

    /// The secrets that a ring opens, of how many.
    private func opened(with line: String, in fixture: DaemonFixture) async throws -> (opened: Int, all: Int) {
        let keys = try SealingKeys(parsing: line)
        let texts = try await fixture.texts(
            "SELECT convert_from(sealed, 'UTF8') FROM siwa.endpoint_secrets ORDER BY generation"
        )
        let opened = texts.enumerated().filter { index, text in
            (try? secret(index + 1).open(Array(text.utf8), with: keys)) == "secret \(index + 1)"
        }
        return (opened.count, texts.count)
    }

    private func doctor(_ environment: [String: String]) async throws -> String {
        let run = try await siwad(["doctor"], environment: environment)
        return run.lines.first { $0.contains(" sealing-keys ") }.map(String.init) ?? "no finding: \(run.output)"
    }

    @Test("siwad sealing new-key prints a line that is accepted as a key, and another one each time.")
    func newKey() async throws {
        var lines: Set<String> = []
        for arguments in [[], [], ["--name", "2026"]] {
            let run = try await siwad(["sealing", "new-key"] + arguments)
            #expect(run.status == 0 && run.lines.count == 1, "\(run.errors)")
            let line = try #require(run.lines.first)
            lines.insert(try SealingKeys(parsing: String(line)).first)
            let config = try await siwad(["config"], environment: ["SIWAD_SEALING_KEYS": String(line)])
            #expect(config.status == 0)
            #expect(!config.output.contains(line.drop { $0 != ":" }.dropFirst()))
        }
        #expect(lines.count == 3 && lines.contains("2026"))
        try await TemporaryDirectory.with { directory in
            // As a shell makes it before the command runs that writes to it.
            let empty = ["SIWAD_SEALING_KEYS_FILE": try directory.write("keys", "")]
            let run = try await siwad(["sealing", "new-key"], environment: empty)
            #expect(run.status == 0 && run.lines.count == 1, "\(run.errors)")
        }
        let json = try await siwad(["sealing", "new-key", "--name", "2026", "--json"])
        let object = try JSONValue(parsing: Array(json.output.utf8))
        #expect(object["name"]?.string == "2026" && json.lines.count == 1, "\(json.errors)")
        #expect(try SealingKeys(parsing: object["line"]?.string ?? "").names == ["2026"])
        #expect(try await siwad(["sealing", "new-key", "--name", "a:b"]).status == 64)
    }

    @Test("A rotation seals every secret with the first key, once, and the doctor says when the old key can go.")
    func rotation() async throws {
        try await DaemonFixture.with { fixture in
            let only = environment(fixture, new)
            #expect(try await doctor(only).hasPrefix("✓ sealing-keys"))
            #expect(try await doctor(environment(fixture)).contains("no secret that needs one"))
            try await seal(700, with: old, in: fixture)
            let both = environment(fixture, new, old)
            let status = try await siwad(["sealing", "status"], environment: both)
            #expect(
                status.lines.map { $0.split(separator: " ").joined(separator: " ") } == [
                    "TABLE KEY SECRETS USE", "endpoint_secrets new 0 seals", "endpoint_secrets old 700 opens",
                ]
            )
            let waiting = try await doctor(both)
            #expect(waiting.contains("old: 700"), "\(waiting)")
            #expect(waiting.contains("siwad sealing rotate --note '…' seals them with new"), "\(waiting)")
            #expect(try await tokenKeys(both).hasSuffix("no refresh token"))
            #expect(try await doctor(only).hasPrefix("✗ sealing-keys"))
            #expect(try await doctor(environment(fixture)).contains("700 secrets sealed, and no key"))

            let rehearsal = try await siwad(["sealing", "rotate", "--dry-run"], environment: both)
            #expect(rehearsal.status == 0, "\(rehearsal.errors)")
            #expect(rehearsal.output == "700 secrets would be sealed with new\n")
            #expect(try await opened(with: old, in: fixture) == (700, 700))
            #expect(try await siwad(["sealing", "rotate"], environment: both).status == 64)

            let rotate = ["sealing", "rotate", "--note", "yearly", "--operator", "kim"]
            let run = try await siwad(rotate, environment: both)
            #expect(run.status == 0, "\(run.errors)")
            #expect(run.output == "700 secrets sealed with new\n")
            #expect(try await opened(with: new, in: fixture) == (700, 700))
            #expect(try await siwad(rotate, environment: both).output == "0 secrets sealed with new\n")
            let audit = try await fixture.texts(
                "SELECT concat_ws(' ', operator, action, target, note, affected) FROM siwa.operator_actions ORDER BY action_id"
            )
            #expect(
                audit == [
                    "kim sealing rotate endpoint_secrets to new yearly 500",
                    "kim sealing rotate endpoint_secrets to new yearly 200",
                ]
            )
            #expect(try await doctor(both).hasSuffix("new; no secret of an endpoint needs old any more"))
            #expect(try await tokenKeys(both).hasSuffix("no refresh token; nothing needs old any more"))
            #expect(try await doctor(only).contains("700 secrets, all sealed with new"))
        }
    }

    @Test("A rotation that is killed between two batches can be repeated, and a row that is locked is left for later.")
    func interruption() async throws {
        try await DaemonFixture.with { fixture in
            try await seal(1_100, with: old, in: fixture)
            // The second batch waits for a lock that the test has.
            try await fixture.run(
                """
                CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM pg_advisory_xact_lock(4711);
                    RETURN NEW;
                END
                $$;
                CREATE TRIGGER stall BEFORE UPDATE ON siwa.endpoint_secrets
                    FOR EACH ROW WHEN (NEW.generation = 600) EXECUTE FUNCTION public.stall();
                """
            )
            let both = ["SIWAD_SEALING_KEYS": "\(new)\n\(old)"]
            let rotate = ["sealing", "rotate", "--note", "yearly"]
            try await fixture.connection.withSession { session throws(PostgresError) in
                try session.execute(script: "SELECT pg_advisory_lock(4711)")
            }
            let process = fixture.start(both, arguments: rotate)
            let waiting = "SELECT 'waits' \(DaemonFixture.ownLocks) AND locktype = 'advisory' AND NOT granted"
            try await eventually("the second batch") { try await !fixture.texts(waiting).isEmpty }
            await process.kill()
            try await fixture.run("SELECT pg_advisory_unlock(4711); DROP TRIGGER stall ON siwa.endpoint_secrets")
            try await eventually("the end of the killed transaction") { try await fixture.texts(waiting).isEmpty }
            #expect(try await opened(with: new, in: fixture) == (500, 1_100))
            #expect(try await opened(with: "\(old)\n\(new)", in: fixture) == (1_100, 1_100))

            let environment = fixture.environment(both)
            try await fixture.run("SELECT pg_advisory_lock(4711)")
            let other = try await DaemonFixture.connect(fixture.conninfo)
            async let holder: Void = other.transaction { session throws(PostgresError) in
                _ = try session.execute(
                    once: "SELECT generation FROM siwa.endpoint_secrets WHERE generation = 800 FOR UPDATE"
                )
                _ = try session.execute(once: "SELECT pg_advisory_xact_lock(4711)")
            }
            try await eventually("the lock of a row") { try await !fixture.texts(waiting).isEmpty }
            let run = try await siwad(rotate + ["--json"], environment: environment)
            #expect(run.status == 2, "\(run.errors)")
            #expect(run.errors.contains("another session changes 1 of them"))
            #expect(run.lines == [#"{"key":"new","resealed":599,"unopened":0,"skipped":1,"dry_run":false}"#])
            try await fixture.run("SELECT pg_advisory_unlock(4711)")
            try await holder
            await other.close()
            let last = try await siwad(rotate, environment: environment)
            #expect(last.status == 0 && last.output == "1 secret sealed with new\n", "\(last.errors)")
            #expect(try await opened(with: new, in: fixture) == (1_100, 1_100))
        }
    }

    @Test("Altered and swapped rows open nothing: the doctor names one, and a rotation leaves what it can't open.")
    func altered() async throws {
        try await DaemonFixture.with { fixture in
            try await seal(4, with: old, in: fixture)
            try await fixture.run(
                """
                UPDATE siwa.endpoint_secrets AS one SET sealed = other.sealed
                FROM siwa.endpoint_secrets AS other
                WHERE (one.generation, other.generation) IN ((1, 2), (2, 1))
                """
            )
            let both = environment(fixture, new, old)
            #expect(try await doctor(both).contains("2 of 4 secrets can't be opened: 1/hmac/1 of endpoint_secrets"))
            // The last character but one of the tag.
            try await fixture.run(
                """
                UPDATE siwa.endpoint_secrets
                SET sealed = set_byte(
                    sealed, length(sealed) - 2, CASE get_byte(sealed, length(sealed) - 2) WHEN 65 THEN 66 ELSE 65 END)
                WHERE generation = 3
                """
            )
            let run = try await siwad(["sealing", "rotate", "--note", "yearly"], environment: both)
            #expect(run.status == 2)
            #expect(run.output == "3 secrets sealed with new\n")
            #expect(run.errors.contains("1 can't be opened and stay as they are: 1/hmac/3 of endpoint_secrets"))
            #expect(try await doctor(both).contains("3 of 4 secrets can't be opened"))
            #expect(try await opened(with: "\(new)\n\(old)", in: fixture) == (1, 4))
            let status = try await siwad(["sealing", "status", "--json"], environment: environment(fixture, new))
            #expect(
                status.lines == [
                    #"{"table":"endpoint_secrets","key":"new","secrets":3,"use":"seals"}"#,
                    #"{"table":"endpoint_secrets","key":"old","secrets":1,"use":"missing"}"#,
                ]
            )
        }
    }

    @Test("An expired secret needs no key: after the loss of a key, a rotation of the endpoint is enough.")
    func expiredSecrets() async throws {
        try await DaemonFixture.with { fixture in
            func endpoints(_ words: String..., environment: [String: String]) async throws {
                let run = try await siwad(["endpoints"] + words + ["--note", "x"], environment: environment)
                #expect(run.status == 0, "\(words): \(run.errors)")
            }
            let only = environment(fixture, new)
            try await endpoints("add", "shop", "--url", "https://1.0.0.1/", environment: environment(fixture, old))
            let finding = try await doctor(only)
            #expect(finding.hasPrefix("✗ sealing-keys") && finding.contains("nothing is sent to shop"), "\(finding)")
            try await endpoints("rotate", "shop", "--now", environment: only)
            #expect(try await doctor(only).contains("✓ sealing-keys"))
            #expect(try await doctor(only).contains("1 secret, all sealed with new"))
            let run = try await siwad(["sealing", "rotate", "--note", "x"], environment: only)
            #expect(run.status == 0 && run.output == "0 secrets sealed with new\n", "\(run.errors)")
            let status = try await siwad(["sealing", "status", "--json"], environment: only)
            #expect(status.lines == [#"{"table":"endpoint_secrets","key":"new","secrets":1,"use":"seals"}"#])
        }
    }

    @Test("A command with other keys than the daemons' makes no secret that these could not open.")
    func otherKeys() async throws {
        try await DaemonFixture.with { fixture in
            let (daemons, other) = (environment(fixture, old), environment(fixture, new))
            let url = ["--url", "https://1.0.0.1/"]
            let added = try await siwad(["endpoints", "add", "shop", "--note", "x"] + url, environment: daemons)
            #expect(added.status == 0, "\(added.errors)")
            let stored = "SELECT encode(sealed, 'hex') || coalesce(expires_at::text, '') FROM siwa.endpoint_secrets"
            let before = try await fixture.texts(stored)
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("endpoints.yaml", "endpoints: {crm: {url: 'https://1.0.0.1/'}}\n")
                let commands = [
                    ["rotate", "shop"], ["add", "crm"] + url, ["edit", "shop", "--signature", "both"], ["apply", file],
                ]
                for command in commands {
                    let run = try await siwad(["endpoints"] + command + ["--note", "x"], environment: other)
                    #expect(run.status == 78, "\(command): \(run.errors)")
                    #expect(run.errors.contains("the hmac secret of shop can't be opened"), "\(run.errors)")
                    #expect(run.errors.contains("add that key to SIWAD_SEALING_KEYS, or siwad endpoints rotate shop"))
                }
            }
            #expect(try await fixture.texts(stored) == before)
        }
    }

    @Test("Without keys, a rotation exits with 78 and says how to make one; no output has a part of a key.")
    func withoutKeys() async throws {
        try await DaemonFixture.with { fixture in
            let run = try await siwad(["sealing", "rotate", "--note", "x"], environment: environment(fixture))
            #expect(run.status == 78)
            #expect(run.errors.contains("SIWAD_SEALING_KEYS") && run.errors.contains("siwad sealing new-key"))
            let status = try await siwad(["sealing", "status"], environment: environment(fixture))
            #expect(status.status == 4)
            try await seal(1, with: new, in: fixture)
            let key = new.dropFirst(4)
            for arguments in [["doctor"], ["sealing", "status"], ["config"], ["config", "--json"]] {
                let run = try await siwad(arguments, environment: environment(fixture, new))
                #expect(!run.output.contains(key) && !run.errors.contains(key), "\(arguments)")
            }
            let malformed = environment(fixture, "name:\(key.dropLast(2))")
            let refused = try await siwad(["sealing", "status"], environment: malformed)
            #expect(refused.status == 78 && refused.errors.contains("line 1"), "\(refused.errors)")
            #expect(!refused.errors.contains(key.prefix(8)))
        }
    }

    @Test("A member of siwad_reader can't read sealed secrets, and the doctor says so.")
    func reader() async throws {
        try await DaemonFixture.with { fixture in
            try await seal(1, with: new, in: fixture)
            let name = "reader_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(name) LOGIN IN ROLE siwad_reader")
            var environment = environment(fixture, new)
            environment["SIWAD_DATABASE_URL"] = "\(fixture.conninfo) user=\(name)"
            let finding = try await doctor(environment)
            let status = try await siwad(["sealing", "status"], environment: environment)
            let rotation = try await siwad(["sealing", "rotate", "--note", "x"], environment: environment)
            try await fixture.run("DROP ROLE \(name)")
            #expect(finding.hasPrefix("✓ sealing-keys") && finding.contains("not checked"), "\(finding)")
            for run in [status, rotation] {
                #expect(run.status == 1 && run.errors.contains("siwad_daemon"), "\(run.errors)")
            }
            #expect(try await opened(with: new, in: fixture) == (1, 1))
        }
    }
}
