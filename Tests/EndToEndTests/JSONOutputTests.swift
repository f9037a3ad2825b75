import AppleSimulator
import Basics
import FoundationEssentials
import JOSE
import StoreTestSupport
import TestSupport
import Testing

@Suite("JSON output", .timeLimit(.minutes(10)))
struct JSONOutputTests {
    /// The paths of all commands that have an option --json.
    private func commandsWithJSON() async throws -> Set<String> {
        let help = try JSONValue(parsing: Array(try await siwad(["--experimental-dump-help"]).output.utf8))
        func paths(_ command: JSONValue, _ path: [String]) -> [String] {
            let hasOption = command["arguments"]?.array?.contains { $0["valueName"]?.string == "json" } ?? false
            let children = command["subcommands"]?.array ?? []
            return (hasOption ? [path.joined(separator: " ")] : [])
                + children.flatMap { paths($0, path + [$0["commandName"]?.string ?? ""]) }
        }
        return Set(paths(try #require(help["command"]), ["siwad"]))
    }

    @Test("Each command with --json has a schema in deploy/doc/json, which the page of JSON output links.")
    func schemas() async throws {
        let titles = try JSONSchemas().titles
        let always = ["sign-in", "person", "behave"].map { "siwad simulate " + $0 }
        #expect(try await Set(titles.values) == Set(commandsWithJSON().map { $0 + " --json" } + always))
        let page = try String(contentsOfFile: JSONSchemas.directory + ".md", encoding: .utf8)
        for (name, title) in titles {
            let path = always.contains(title) ? "siwad-\(name)" : "siwad-\(name)---json"
            #expect(path == title.replacing(" ", with: "-"), "the name of \(name).json")
            #expect(page.contains("](json/\(name).json)"), "\(name)")
        }
    }

    @Test("All output with --json has the members that its schema declares, with their types.")
    func output() async throws {
        try await TemporaryDirectory.with { directory in
            let settings = ["SIWAD_SEALING_KEYS": "test:" + String(repeating: "A", count: 43) + "="]
            try await DaemonFixture.withDaemon(settings) { fixture, _, addresses in
                try await prepare(fixture, addresses)
                var schemas = try JSONSchemas()
                var done: Set<String> = []
                for (name, arguments) in try await runs(fixture, addresses, directory) {
                    // tail ends when its reader does.
                    if name == "changes-list" { try await publication(of: "ended", fixture) }
                    if name == "endpoints-list" { try await prepareDeliveries(fixture) }
                    let reader = arguments.first == "tail" ? "| head -n 1" : ""
                    let environment = fixture.environment(settings)
                    let run = try await siwad(arguments, redirectedBy: reader, environment: environment)
                    #expect(!run.lines.isEmpty, "\(arguments): \(run.errors)")
                    for line in run.lines { #expect(schemas.problems(line, name) == [], "\(arguments)") }
                    done.insert(name)
                }
                for (name, output) in try await simulated(addresses, directory) {
                    #expect(schemas.problems(Substring(output), name) == [], "\(output)")
                    done.insert(name)
                }
                #expect(Set(schemas.titles.keys).subtracting(done) == [], "a command is not run here")
                #expect(schemas.unseen == [], "these members had no value other than null")
            }
        }
    }

    // MARK: - Private parts

    /// People, sessions and dead letters in every state.
    private func prepare(_ fixture: DaemonFixture, _ addresses: DaemonProcess.Addresses) async throws {
        try await fixture.run(
            """
            SELECT siwa.record_sign_in('com.example.one', sub, sub || '@example.com', true, now() - '1h'::interval)
            FROM unnest('{person,revoked,deleted}'::text[]) AS sub;
            SELECT siwa.open_session('com.example.one', 'person', 'live', now(), now() + '1d'::interval);
            SELECT siwa.open_session('com.example.one', 'person', 'ended', now());
            SELECT siwa.open_session('com.example.one', 'revoked', 'revoked', now());
            INSERT INTO siwa.apple_tokens (
                account_id, client_id, app_id, obtained_at, sealed, key_name, validated_at, asked_at, due_at
            )
            SELECT account_id, 'com.example.one', 'com.example.one', now(), '', 'test', now(), now(), now()
            FROM siwa.accounts WHERE sub = 'person';
            """
        )
        var events = [
            fixture.event("email-disabled"), fixture.event("email-enabled"),
            fixture.event("consent-revoked", sub: "revoked", id: "revocation"),
            fixture.event("account-deleted", sub: "deleted"), fixture.event("person-promoted"),
            fixture.event("email-disabled", sub: "added", app: "com.example.added"),
            fixture.event("email-disabled", sub: "sold", app: "com.example.sold"),
        ]
        events[0].email = "person@example.com"
        for event in events {
            #expect(try await Web.post(fixture.body(event), to: addresses.notifications).status == 200)
        }
        try await fixture.run(
            """
            UPDATE siwa.accounts SET email = NULL, email_is_private = NULL, email_observed_at = 'infinity', erased_at = now()
            WHERE sub = 'deleted'
            """
        )
    }

    /// Two endpoints, the second of which has a delivery in each status. They are paused, so that the daemon leaves them alone.
    private func prepareDeliveries(_ fixture: DaemonFixture) async throws {
        try await fixture.run(
            """
            INSERT INTO siwa.endpoints (name, url, types, apps, rate, include, status, status_reason)
            VALUES
                (
                    'ok', 'https://a.example', '{siwa.consent.revoked}', '{com.example.one}', 0.5, '{email}', 'paused',
                    'operator'
                ),
                ('failing', 'https://a.example', NULL, NULL, NULL, '{}', 'paused', 'operator');
            INSERT INTO siwa.endpoint_states (
                endpoint_id, failing_since, open_until, probe_delay, last_success_at, last_reason, last_http_status, last_detail
            )
            SELECT endpoint_id, now(), now(), '5 s', now(), 'failed', 503, 'answered 503' FROM siwa.endpoints;
            INSERT INTO siwa.endpoint_secrets (endpoint_id, purpose, generation, sealed, key_id, fingerprint)
            SELECT endpoint_id, 'hmac', 1, '', 'test', '0123abcd' FROM siwa.endpoints;
            INSERT INTO siwa.deliveries (
                endpoint_id, position, account_id, status, next_attempt_at, reason, first_failed_at, http_status, resolved_at,
                resolved_by, note
            )
            SELECT
                endpoint_id, position, account_id, status, CASE WHEN status IN ('pending', 'retry') THEN now() END,
                CASE WHEN status IN ('retry', 'dead') THEN 'failed' END,
                CASE WHEN status IN ('retry', 'dead') THEN now() END,
                CASE WHEN status IN ('retry', 'dead') THEN 503 END,
                CASE WHEN status IN ('delivered', 'discarded') THEN now() END,
                CASE WHEN status = 'discarded' THEN 'kim' END, CASE WHEN status = 'discarded' THEN 'why' END
            FROM (SELECT endpoint_id FROM siwa.endpoints WHERE name = 'failing') AS e, siwa.changes,
                unnest('{pending,retry,dead,discarded,delivered}'::text[]) WITH ORDINALITY AS s (status, number)
            WHERE position = number
            ON CONFLICT (endpoint_id, position) DO UPDATE
            SET status = excluded.status, next_attempt_at = excluded.next_attempt_at, reason = excluded.reason,
                first_failed_at = excluded.first_failed_at, http_status = excluded.http_status,
                resolved_at = excluded.resolved_at, resolved_by = excluded.resolved_by, note = excluded.note;
            INSERT INTO siwa.delivery_attempts
                (endpoint_id, position, attempt, attempted_at, duration, reason, http_status, detail)
            SELECT endpoint_id, position, 1, now(), '12 ms', reason, http_status, 'the receiver answered 503'
            FROM siwa.deliveries WHERE status = 'dead'
            """
        )
    }

    /// A request whose answer has a value for every member.
    private func signIn(_ fixture: DaemonFixture) throws -> String {
        let now = WallTime.now().wholeSeconds
        let token = try fixture.apple.token(
            claims: """
                {"iss":"https://appleid.apple.com","aud":"com.example.one","exp":\(now + 600),"iat":\(now),"sub":"signed",
                "nonce":"nonce-of-person","nonce_supported":true,"email":"a@example.com","email_verified":true,
                "real_user_status":2,"org_id":"org","transfer_sub":"former"}
                """
        )
        return """
            {"client_id":"com.example.one","identity_token":"\(token)","nonce":"nonce-of-person",
            "user":{"name":{"firstName":"Maria","lastName":"Ruiz"}},"session":{"id":"opened","expires_in":60}}
            """
    }

    /// Waits until the change that ended a session is published.
    private func publication(of session: String, _ fixture: DaemonFixture) async throws {
        try await eventually("the end of the session to be published") {
            try await !fixture.texts("SELECT type FROM siwa.changes WHERE session_id = '\(session)'").isEmpty
        }
    }

    /// The output of the commands that control a simulated Apple, by the name of the schema.
    private func simulated(
        _ addresses: DaemonProcess.Addresses,
        _ directory: TemporaryDirectory
    ) async throws -> [(String, String)] {
        let key = directory.file("apple/key.pem")
        let apple = DaemonProcess(
            ["simulate", "apple", "--key", key, "--listen", "127.0.0.1:0", "--notify", addresses.notifications],
            environment: [:]
        )
        do {
            try await eventually("the simulated Apple") { !apple.output.isEmpty }
            let url = try #require(apple.output.first?.split(separator: " ").first)
            let environment = ["SIWAD_APPLE_URL": String(url)]
            var outputs: [(String, String)] = []
            for arguments in ["sign-in --client-id a", "behave --status 503", "person stop-using --client-id a"] {
                let words = arguments.split(separator: " ").map(String.init)
                let run = try await siwad(["simulate"] + words, environment: environment)
                outputs.append(("simulate-\(words[0])", String(try #require(run.lines.first, "\(run.errors)"))))
            }
            await apple.kill()
            return outputs
        } catch {
            await apple.kill()
            throw error
        }
    }

    /// Names of schemas, and command lines whose output has them.
    private func runs(
        _ fixture: DaemonFixture,
        _ addresses: DaemonProcess.Addresses,
        _ directory: TemporaryDirectory
    ) async throws -> [(String, [String])] {
        let out = directory.file("apple")
        let token = try directory.write("token", fixture.apple.token(for: fixture.event()))
        let keys = try directory.write("keys.json", fixture.apple.keySetJSON)
        let endpoints = try directory.write("endpoints.yaml", "endpoints: {ok: {url: https://b.example}}")
        let letters = try await fixture.texts("SELECT id::text FROM siwa.dead_letters ORDER BY event_type DESC, sub")
        let apps = "\(DaemonFixture.apps),CCCCCCCCCC/com.example.added"
        let event = ["--key", out + "/key.pem", "--type", "email-disabled", "--app", "com.example.one"]
        let key = directory.file("key.p8")
        _ = try await OpenSSL.run(
            ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key]
        )
        let request = try directory.write("request.json", try signIn(fixture))
        let titles = try JSONSchemas().titles
        let lines: [(String, String)] = [
            ("simulate-keys", "--out \(out)"),
            ("simulate-send", event.joined(separator: " ") + " " + addresses.notifications),
            ("simulate-send", event.joined(separator: " ") + " http://127.0.0.1:1/none"),
            ("dead-letters-replay", "--all --dry-run"),
            ("dead-letters-replay", "--all --note why --apps \(apps)"),
            ("dead-letters-replay", "\(letters[0]) --note again"),
            ("dead-letters-discard", "--app com.example.sold --dry-run"),
            ("dead-letters-discard", "--app com.example.sold --note why"),
            ("dead-letters-list", "--status any"), ("dead-letters-show", letters.joined(separator: " ")),
            ("dead-letters-stats", "--by reason"), ("dead-letters-stats", "--by app"),
            ("dead-letters-stats", "--by type"),
            ("dead-letters-reopen", "--all --dry-run"), ("dead-letters-reopen", "--all --note why"),
            ("sessions-end", "ended --note why"), ("sessions-list", ""), ("sessions-show", "revoked"),
            ("sessions-show", "ended"), ("sessions-show", "live"),
            ("notifications-list", ""), ("notifications-show", "revocation"), ("tail", ""),
            ("accounts-list", ""), ("accounts-history", ""), ("accounts-show", "person"), ("accounts-show", "revoked"),
            ("accounts-show", "deleted"),
            ("audit-list", ""), ("audit-show", "1"),
            ("clients-list", ""), ("clients-remove", "com.example.web --note why"),
            ("sealing-new-key", ""), ("sealing-status", ""), ("sealing-rotate", "--note why"),
            ("tokens-list", ""), ("tokens-show", "person"),
            ("client-secret", "--client-id com.example.one --apple-keys AAAAAAAAAA/KEY1234567=\(key)"),
            ("sign-in", "--request \(request)"),
            ("application-token", "shop --client-id com.example.one"),
            ("migrate-status", ""), ("config", ""), ("config", "--apps none"), ("doctor", ""),
            ("verify", "\(token) --keys \(keys)"),
            ("changes-list", ""), ("changes-show", "1"), ("changes-follow", "--from-start --until-current"),
            ("endpoints-list", ""), ("endpoints-show", "ok"), ("endpoints-show", "failing"),
            ("endpoints-apply", "\(endpoints) --dry-run"), ("deliveries-list", "--status any"),
            ("deliveries-show", "failing/1"), ("deliveries-show", "failing/3"), ("deliveries-show", "failing/4"),
            ("changes-show", "1"), ("changes-show", "2"), ("changes-show", "3"), ("changes-show", "4"),
            ("deliveries-stats", "--by endpoint"),
            ("deliveries-stats", "--by reason"), ("deliveries-stats", "--by type"), ("deliveries-stats", "--by app"),
            ("deliveries-retry", "--all --status any --dry-run"),
            ("deliveries-discard", "--all --status any --dry-run"),
            ("deliveries-retry", "failing/3 --note why"), ("deliveries-discard", "failing/2 --status retry --note why"),
        ]
        return try lines.map { name, arguments in
            let command = try #require(titles[name]).split(separator: " ").dropFirst()
            return (name, (command + arguments.split(separator: " ")).map(String.init))
        }
    }
}
