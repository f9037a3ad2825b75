import AppleTokens
import Basics
import JOSE
import Postgres
import Testing
import Webhooks

/// The same for refresh tokens.
extension SealingTests {
    /// Refresh tokens of this many people, sealed with a ring.
    private func sealTokens(_ count: Int, with line: String, in fixture: DaemonFixture) async throws {
        let keys = try SealingKeys(parsing: line)
        let rows = try (1...count).map { account in
            let token = SealedRefreshToken(account: Int64(account), client: ClientID("com.example.one"))
            let sealed = String(decoding: try token.seal("r\(account)", with: keys), as: UTF8.self)
            return "(\(account), 'com.example.one', 'com.example.one', now(), convert_to('\(sealed)', 'UTF8'), "
                + "'\(keys.first)', now())"
        }
        try await fixture.run(
            """
            INSERT INTO siwa.clients VALUES ('com.example.one', 'com.example.one', 'AAAAAAAAAA') ON CONFLICT DO NOTHING;
            SELECT siwa.record_sign_in('com.example.one', 'person' || n) FROM generate_series(1, \(count)) AS n ORDER BY n;
            SELECT siwa.open_session('com.example.one', 'person' || n, 's' || n) FROM generate_series(1, \(count)) AS n;
            INSERT INTO siwa.apple_tokens (account_id, client_id, app_id, obtained_at, sealed, key_name, due_at)
            VALUES \(rows.joined(separator: ", "))
            """
        )
    }

    /// The finding of the doctor about the keys of refresh tokens.
    func tokenKeys(_ environment: [String: String]) async throws -> String {
        let run = try await siwad(["doctor"], environment: environment)
        return run.lines.first { $0.contains(" token-keys ") }.map(String.init) ?? "no finding: \(run.output)"
    }

    @Test("A rotation seals refresh tokens too, two at the same time share the work, and a killed one is repeated.")
    func refreshTokens() async throws {
        try await DaemonFixture.with { fixture in
            try await sealTokens(1_300, with: old, in: fixture)
            let (only, both) = (environment(fixture, new), environment(fixture, new, old))
            #expect(try await tokenKeys(only).contains("✗ token-keys"))
            #expect(try await tokenKeys(only).contains("(old: 1300)"))
            #expect(try await tokenKeys(both).contains("⚠ token-keys"))
            let rotate = ["sealing", "rotate", "--note", "yearly"]
            try await fixture.run(
                """
                CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM pg_advisory_xact_lock(4711);
                    RETURN NEW;
                END
                $$;
                CREATE TRIGGER stall BEFORE UPDATE ON siwa.apple_tokens
                    FOR EACH ROW WHEN (NEW.account_id = 600) EXECUTE FUNCTION public.stall();
                SELECT pg_advisory_lock(4711);
                """
            )
            let process = fixture.start(["SIWAD_SEALING_KEYS": "\(new)\n\(old)"], arguments: rotate)
            let waiting = "SELECT 'waits' \(DaemonFixture.ownLocks) AND locktype = 'advisory' AND NOT granted"
            try await eventually("the second batch") { try await !fixture.texts(waiting).isEmpty }
            // The other one leaves out the rows of the batch that waits.
            let other = try await siwad(rotate + ["--json"], environment: both)
            #expect(
                other.lines == [#"{"key":"new","resealed":300,"unopened":0,"skipped":500,"dry_run":false}"#],
                "\(other.errors)"
            )
            await process.kill()
            try await fixture.run("SELECT pg_advisory_unlock(4711)")
            let locked = "SELECT 'locks' \(DaemonFixture.ownLocks) AND relation = 'siwa.apple_tokens'::regclass"
            try await eventually("the end of the killed transaction") { try await fixture.texts(locked).isEmpty }
            #expect(try await siwad(rotate, environment: both).output == "500 secrets sealed with new\n")
            #expect(try await tokenKeys(only).contains("1300 refresh tokens, all sealed with new"))
            let keys = try SealingKeys(parsing: new)
            let texts = try await fixture.texts(
                "SELECT convert_from(sealed, 'UTF8') FROM siwa.apple_tokens ORDER BY account_id"
            )
            for (index, text) in texts.enumerated() {
                let token = SealedRefreshToken(account: Int64(index + 1), client: ClientID("com.example.one"))
                #expect(try token.open(Array(text.utf8), with: keys) == "r\(index + 1)")
            }
        }
    }

    @Test("A rotation that is killed in any batch, before or during its commit, has sealed what its audit says.")
    func killedAnywhere() async throws {
        try await DaemonFixture.with { fixture in
            // Two batches of each table.
            try await seal(700, with: old, in: fixture)
            try await sealTokens(600, with: old, in: fixture)
            let (beforeEntry, beforeCommit) = (4711, 4712)
            try await fixture.run(
                """
                CREATE FUNCTION public.stall() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM pg_advisory_xact_lock_shared(TG_ARGV[0]::bigint);
                    RETURN NEW;
                END
                $$;
                CREATE TRIGGER stall BEFORE INSERT ON siwa.operator_actions
                    FOR EACH ROW EXECUTE FUNCTION public.stall('\(beforeEntry)');
                CREATE CONSTRAINT TRIGGER stall_commit AFTER INSERT ON siwa.operator_actions
                    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.stall('\(beforeCommit)');
                """
            )
            let both = ["SIWAD_SEALING_KEYS": "\(new)\n\(old)"]
            let rotate = ["sealing", "rotate", "--note", "yearly"]
            let waiting = "SELECT 'waits' \(DaemonFixture.ownLocks) AND locktype = 'advisory' AND NOT granted"
            let locked = """
                SELECT 'locks' \(DaemonFixture.ownLocks)
                    AND relation IN ('siwa.endpoint_secrets'::regclass, 'siwa.apple_tokens'::regclass)
                """
            let sealed = """
                SELECT ((SELECT count(*) FROM siwa.endpoint_secrets WHERE key_id = 'new')
                    + (SELECT count(*) FROM siwa.apple_tokens WHERE key_name = 'new'))::text
                """
            let recorded = "SELECT coalesce(sum(affected), 0)::text FROM siwa.operator_actions"
            var count = 0
            for batch in [500, 200, 500, 100] {
                // PostgreSQL undoes the transaction of a client that is gone, unless it has begun to commit it.
                for (stall, progress) in [(beforeEntry, 0), (beforeCommit, batch)] {
                    try await fixture.run("SELECT pg_advisory_lock(\(stall))")
                    let process = fixture.start(both, arguments: rotate)
                    try await eventually("the batch") { try await !fixture.texts(waiting).isEmpty }
                    await process.kill()
                    try await fixture.run("SELECT pg_advisory_unlock(\(stall))")
                    try await eventually("the end of the transaction") { try await fixture.texts(locked).isEmpty }
                    count += progress
                    #expect(try await fixture.texts(sealed) == ["\(count)"])
                    #expect(try await fixture.texts(recorded) == ["\(count)"])
                }
            }
            let last = try await siwad(rotate, environment: fixture.environment(both))
            #expect(last.status == 0 && last.output == "0 secrets sealed with new\n", "\(last.errors)")
            let doctor = try await siwad(["doctor"], environment: environment(fixture, new)).output
            #expect(doctor.contains("700 secrets, all sealed with new"), "\(doctor)")
            #expect(doctor.contains("600 refresh tokens, all sealed with new"), "\(doctor)")
        }
    }

    @Test("Without endpoints, the doctor says that nothing needs the old key only once refresh tokens don't.")
    func oldKeyOfTokens() async throws {
        try await DaemonFixture.with { fixture in
            try await sealTokens(2, with: old, in: fixture)
            let both = environment(fixture, new, old)
            let before = try await siwad(["doctor"], environment: both).output
            #expect(before.contains("0 secrets, all sealed with new; no secret of an endpoint needs old any more"))
            #expect(before.contains("2 refresh tokens, some with old keys (old: 2)"), "\(before)")
            #expect(!before.contains("nothing needs"), "\(before)")
            let rotation = try await siwad(["sealing", "rotate", "--note", "yearly"], environment: both)
            #expect(rotation.status == 0, "\(rotation.errors)")
            let after = try await siwad(["doctor"], environment: both).output
            #expect(after.contains("2 refresh tokens, all sealed with new; nothing needs old any more"), "\(after)")
            #expect(after.ranges(of: "nothing needs").count == 1, "\(after)")
        }
    }

    /// A refresh token as a row of `siwa.apple_tokens` has it.
    private func sealedToken(of account: Int64, with line: String) throws -> String {
        let token = SealedRefreshToken(account: account, client: ClientID("com.example.one"))
        return String(decoding: try token.seal("r\(account)", with: SealingKeys(parsing: line)), as: UTF8.self)
    }

    @Test(
        "Swapped, altered, cut and relabelled refresh tokens become unreadable and end nothing; a key that is back opens them."
    )
    func unreadableTokens() async throws {
        try await DaemonFixture.with { fixture in
            try await sealTokens(8, with: old, in: fixture)
            let lost = try SealingKeys.newLine(name: "lost")
            // The header is authenticated: it can't name another key of the ring.
            let header = try sealedToken(of: 7, with: new).prefix { $0 != "." }
            let relabelled = try header + sealedToken(of: 7, with: old).drop { $0 != "." }
            // The first 12 bytes of the tag, which GCM allows in principle.
            let cut = try sealedToken(of: 8, with: old).dropLast(6)
            try await fixture.run(
                """
                UPDATE siwa.apple_tokens AS one SET sealed = other.sealed
                FROM siwa.apple_tokens AS other
                WHERE (one.account_id, other.account_id) IN ((1, 2), (2, 1));
                -- The last character but one of the tag.
                UPDATE siwa.apple_tokens
                SET sealed = set_byte(
                    sealed, length(sealed) - 2, CASE get_byte(sealed, length(sealed) - 2) WHEN 65 THEN 66 ELSE 65 END)
                WHERE account_id = 3;
                UPDATE siwa.apple_tokens
                SET sealed = convert_to('\(try sealedToken(of: 4, with: lost))', 'UTF8'), key_name = 'lost'
                WHERE account_id = 4;
                UPDATE siwa.apple_tokens SET sealed = convert_to('{"kid":"old"}', 'UTF8') WHERE account_id = 5;
                UPDATE siwa.apple_tokens SET sealed = convert_to('\(relabelled)', 'UTF8') WHERE account_id = 7;
                UPDATE siwa.apple_tokens SET sealed = convert_to('\(cut)', 'UTF8') WHERE account_id = 8;
                """
            )
            let live = "SELECT count(*)::text FROM siwa.live_sessions"
            let states = "SELECT account_id || ' ' || state || ' ' || key_name FROM siwa.refresh_tokens ORDER BY 1"
            let both = environment(fixture, new, old)
            let run = try await siwad(["sealing", "rotate", "--note", "yearly"], environment: both)
            #expect(run.status == 2)
            #expect(run.output == "1 secret sealed with new\n")
            #expect(run.errors.contains("7 can't be opened and are set aside: 1/com.example.one of apple_tokens"))
            #expect(
                try await fixture.texts(states) == [
                    "1 unreadable old", "2 unreadable old", "3 unreadable old", "4 unreadable lost", "5 unreadable old",
                    "6 valid new", "7 unreadable old", "8 unreadable old",
                ]
            )
            #expect(try await fixture.texts(live) == ["8"])
            #expect(try await tokenKeys(both).contains("7 of 8 refresh tokens unreadable"))
            let list = try await siwad(["tokens", "list", "--state", "unreadable", "--json"], environment: both)
            #expect(list.lines.count == 7 && !list.output.contains("eyJ"), "\(list.output)")

            let again = environment(fixture, new, old, lost)
            let healed = try await siwad(["sealing", "rotate", "--note", "put back"], environment: again)
            #expect(healed.status == 2 && healed.output == "1 secret sealed with new\n")
            let healthy = try await fixture.texts(states).filter { $0.contains("valid") }
            #expect(healthy == ["4 valid new", "6 valid new"])
            #expect(try await fixture.texts(live) == ["8"])
        }
    }

    private func audit(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts(
            "SELECT concat_ws(' ', action, target, note, affected) FROM siwa.operator_actions ORDER BY action_id"
        )
    }

    @Test("A refresh token that was set aside is valid again when its key is back, even as the first of the ring.")
    func keyIsBack() async throws {
        try await DaemonFixture.with { fixture in
            try await sealTokens(3, with: old, in: fixture)
            let rotate = ["sealing", "rotate", "--note", "yearly"]
            let lost = try await siwad(rotate, environment: environment(fixture, new))
            #expect(lost.status == 1 && lost.output == "0 secrets sealed with new\n", "\(lost.errors)")
            let states = "SELECT account_id || ' ' || state || ' ' || key_name FROM siwa.refresh_tokens ORDER BY 1"
            #expect(try await fixture.texts(states) == ["1 unreadable old", "2 unreadable old", "3 unreadable old"])
            let back = try await siwad(rotate, environment: environment(fixture, old))
            #expect(back.status == 0 && back.output == "3 secrets sealed with old\n", "\(back.errors)")
            #expect(try await fixture.texts(states) == ["1 valid old", "2 valid old", "3 valid old"])
            #expect(try await tokenKeys(environment(fixture, old)).contains("3 refresh tokens, all sealed with old"))
            let again = try await siwad(rotate, environment: environment(fixture, old))
            #expect(again.status == 0 && again.output == "0 secrets sealed with old\n", "\(again.errors)")
        }
    }

    @Test("A rotation that only sets refresh tokens aside is recorded once, and says what becomes of secrets.")
    func auditOfUnreadableTokens() async throws {
        try await DaemonFixture.with { fixture in
            try await sealTokens(2, with: old, in: fixture)
            let only = environment(fixture, new)
            let rehearsal = try await siwad(["sealing", "rotate", "--dry-run"], environment: only)
            #expect(rehearsal.status == 1, "\(rehearsal.errors)")
            #expect(rehearsal.errors.contains("2 can't be opened and would be set aside: 1/com.example.one"))
            #expect(try await audit(fixture).isEmpty)
            let rotate = ["sealing", "rotate", "--note", "lost"]
            for _ in 1...2 {
                let run = try await siwad(rotate, environment: only)
                #expect(run.status == 1 && run.errors.contains("2 can't be opened and are set aside"), "\(run.errors)")
                #expect(try await audit(fixture) == ["sealing rotate apple_tokens set aside lost 2"])
            }
            try await seal(1, with: old, in: fixture)
            let both = try await siwad(rotate, environment: only)
            let sentence = "3 can't be opened; the refresh tokens among them (2) are set aside: 1/hmac/1"
            #expect(both.status == 1 && both.errors.contains(sentence), "\(both.errors)")
        }
    }
}
