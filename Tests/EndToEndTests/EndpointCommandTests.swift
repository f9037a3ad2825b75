import AccountStore
import JOSE
import TestSupport
import Testing

@Suite("siwad endpoints", .timeLimit(.minutes(10)))
struct EndpointCommandTests {
    @Test("An added endpoint gets the changes that follow, or with --from-start and --since earlier ones too.")
    func add() async throws {
        try await DaemonFixture.with { fixture in
            try await Changes.publish(3, in: fixture)
            try await fixture.endpoints("add later --url \(DaemonFixture.receiverURL) --type consent.authorized")
            try await fixture.endpoints(
                "add all --url \(DaemonFixture.receiverURL) --type siwa.consent.authorized --from-start"
            )
            try await fixture.endpoints("add none --url \(DaemonFixture.receiverURL) --since now --app com.example.two")
            try await fixture.endpoints("add usual --url \(DaemonFixture.receiverURL) --since 1h")
            try await Changes.publish(1, in: fixture)
            let rows = try await fixture.texts(
                """
                SELECT concat_ws(' ', e.name, d.position, d.status)
                FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id) ORDER BY e.name, d.position
                """
            )
            #expect(rows == ["all 1 pending", "all 2 pending", "all 3 pending", "all 4 pending", "later 4 pending"])
            #expect(try await fixture.texts("SELECT DISTINCT status FROM siwa.endpoints") == ["enabled"])
            #expect(
                try await fixture.audit().prefix(3) == [
                    "endpoints add: later: why", "endpoints add: all: why", "endpoints add: all: why",
                ]
            )
            let again = try await fixture.attemptEndpoints([
                "add", "all", "--url", DaemonFixture.receiverURL, "--note", "x",
            ])
            let edit = "all exists already: siwad endpoints edit all --url … --note '…' changes it"
            #expect(again.status == 1 && again.errors.contains(edit), "\(again.errors)")
        }
    }

    @Test(
        "An endpoint that nothing could be delivered to is refused, and nothing is stored.",
        arguments: [
            ["Shop", "--url", DaemonFixture.receiverURL], ["sh.op", "--url", DaemonFixture.receiverURL],
            ["sh_op", "--url", DaemonFixture.receiverURL], ["", "--url", DaemonFixture.receiverURL],
            [String(repeating: "a", count: 64), "--url", DaemonFixture.receiverURL],
            ["shop"], ["shop", "--url", "shop.example.com"], ["shop", "--url", "ftp://shop.example.com/"],
            ["shop", "--url", "https://user:pass@shop.example.com/"], ["shop", "--url", "https://shop.example.com/#a"],
            ["shop", "--url", "https://[fe80::1%25eth0]/"], ["shop", "--url", "https://shop.example.com:0/"],
            ["shop", "--url", "https://shop.example.com:65536/"], ["shop", "--url", "https://schön.example.com/"],
            ["shop", "--url", "https://shop.example.com/" + String(repeating: "a", count: 2_048)],
            ["shop", "--url", "https:///path"], ["shop", "--url", "https://shop.example.com/a b"],
            ["shop", "--url", DaemonFixture.receiverURL, "--type", "account.renamed"],
            ["shop", "--url", DaemonFixture.receiverURL, "--ordering", "strict"],
            ["shop", "--url", DaemonFixture.receiverURL, "--concurrency", "0"],
            ["shop", "--url", DaemonFixture.receiverURL, "--concurrency", "65"],
            ["shop", "--url", DaemonFixture.receiverURL, "--timeout", "999ms"],
            ["shop", "--url", DaemonFixture.receiverURL, "--timeout", "61s"],
            ["shop", "--url", DaemonFixture.receiverURL, "--rate", "0"],
            ["shop", "--url", DaemonFixture.receiverURL, "--rate", "-1"],
            ["shop", "--url", DaemonFixture.receiverURL, "--rate", "nan"],
            ["shop", "--url", DaemonFixture.receiverURL, "--rate", "1e20"],
            ["shop", "--url", DaemonFixture.receiverURL, "--retries", "5s,-1s"],
            ["shop", "--url", DaemonFixture.receiverURL, "--retries", ""],
            ["shop", "--url", DaemonFixture.receiverURL, "--retries", ","],
            ["shop", "--url", DaemonFixture.receiverURL, "--retries", "soon"],
            ["shop", "--url", DaemonFixture.receiverURL, "--signature", "rsa"],
            ["shop", "--url", DaemonFixture.receiverURL, "--include", "names"],
            ["shop", "--url", DaemonFixture.receiverURL, "--disable-after", "-1s"],
            ["shop", "--url", DaemonFixture.receiverURL, "--from-start", "--since", "1h"],
        ]
    )
    func refusal(arguments: [String]) async throws {
        try await DaemonFixture.with { fixture in
            let run = try await fixture.attemptEndpoints(["add", "--note", "why"] + arguments)
            #expect(run.status == 64 && run.errorLines.count == 1, "\(run.errors)")
            #expect(!run.errors.contains("pass@") && !run.errors.contains("hidden-in-the-query"), "\(run.errors)")
            #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
        }
    }

    @Test("Unknown apps, unknown endpoints and missing notes are refused with the next step.")
    func mistakes() async throws {
        try await DaemonFixture.with { fixture in
            let app = try await fixture.attemptEndpoints(
                ["add", "a", "--url", DaemonFixture.receiverURL, "--app", "com.example.none", "--note", "x"]
            )
            #expect(app.status == 1 && app.errors.contains("no app com.example.none is registered"), "\(app.errors)")
            let unnamed = try await fixture.attemptEndpoints(["pause", "shop", "--note", "x"])
            #expect(unnamed.status == 4 && unnamed.errors.contains("endpoints add"), "\(unnamed.errors)")
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL)")
            let other = try await fixture.attemptEndpoints(["remove", "shopp", "--note", "x"])
            #expect(other.status == 4 && other.errors.contains("the names in use are shop"), "\(other.errors)")
            for verb in ["edit", "rotate", "pause", "resume", "seek", "remove"] {
                let run = try await fixture.attemptEndpoints([verb, "shop"])
                #expect(run.status == 64 && run.errors.contains("--note must say why"), "\(verb): \(run.errors)")
            }
            #expect(try await fixture.audit() == ["endpoints add: shop: why"])
        }
    }

    @Test("Without sealing keys, add exits with 78 and names the command that prints one.")
    func unsealed() async throws {
        try await DaemonFixture.with { fixture in
            let add = ["endpoints", "add", "shop", "--url", DaemonFixture.receiverURL, "--note", "x"]
            let run = try await siwad(add, environment: fixture.environment())
            #expect(run.status == 78 && run.errors.contains("siwad sealing new-key"), "\(run.errors)")
            #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
        }
    }

    @Test("edit changes what is given, restores defaults, and makes the secret that another signature needs.")
    func edit() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints(
                "add shop --url \(DaemonFixture.receiverURL) --timeout 5s --app com.example.one"
            )
            try await fixture.endpoints("edit shop --signature both --rate 0.5 --app default --retries 50ms,100ms")
            let row = """
                SELECT concat_ws(' ', timeout, rate, apps IS NULL, retries, signature, revision) FROM siwa.endpoints
                """
            #expect(try await fixture.texts(row) == ["00:00:05 0.5 t {00:00:00.05,00:00:00.1} both 2"])
            #expect(
                try await fixture.texts("SELECT purpose FROM siwa.endpoint_secrets ORDER BY 1") == ["ed25519", "hmac"]
            )
            let same = try await fixture.endpoints("edit shop --rate 0.5")
            #expect(same.output.contains("nothing was changed"))
            #expect(try await fixture.audit().count == 2)
            #expect(try await fixture.attemptEndpoints(["edit", "shop", "--note", "x"]).status == 64)
            let show = try await fixture.endpoints("show shop")
            #expect(show.output.contains("50ms, 100ms") && show.output.contains("all but siwa.consent.authorized"))
        }
    }

    @Test("Without --retries, an endpoint has the usual delays, which are the table's default too.")
    func usualRetries() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL)")
            try await fixture.run(
                "INSERT INTO siwa.endpoints (name, kind, url) VALUES ('plain', 'webhook', 'https://plain.example.com/')"
            )
            let stored = """
                SELECT array_to_string(ARRAY(SELECT extract(epoch FROM r)::bigint FROM unnest(retries) AS r), ' ')
                FROM siwa.endpoints
                """
            let usual = EndpointConfiguration.usualRetries.map { "\($0.components.seconds)" }.joined(separator: " ")
            #expect(try await fixture.texts(stored) == [usual, usual])
            let show = try await fixture.endpoints("show shop --json")
            let page = try JSONValue(parsing: Array((show.lines.first ?? "").utf8))
            let retries = page["retries"]?.array?.compactMap(\.string)
            #expect(retries == ["5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "1d"], "\(show.output)")
        }
    }

    @Test("A daemon attempts a delivery after the delays of --retries, and then no more.")
    func deliveredRetries() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret, answering: { _, _ in .status(500) }) { receiver in
                try await fixture.endpoints(
                    "add shop --url \(receiver.url) --type consent.authorized --retries 50ms,100ms"
                )
                try await Changes.publish(1, in: fixture)
                let settings = Sealing.settings.merging(["SIWAD_DELIVERY_ALLOW": "127.0.0.0/8"]) { $1 }
                try await fixture.withDaemon(settings) { _, _ in try await fixture.untilDelivered("shop dead 1") }
                #expect(receiver.messages.count == 3)
                // A delay is up to 20 % shorter than configured. The shortest usual one is 4 s.
                let other = try await fixture.texts(
                    """
                    SELECT a.attempt || ' after ' || a.gap
                    FROM (
                        SELECT attempt, attempted_at - lag(attempted_at) OVER (ORDER BY attempt) AS gap
                        FROM siwa.delivery_attempts
                    ) AS a
                    WHERE a.attempt > 1
                        AND a.gap NOT BETWEEN CASE a.attempt WHEN 2 THEN interval '40 ms' ELSE interval '80 ms' END
                            AND interval '4 s'
                    """
                )
                #expect(other == [])
            }
        }
    }

    @Test("remove deletes the endpoint with its secrets and deliveries, and keeps the published changes.")
    func remove() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --type consent.authorized")
            try await Changes.publish(1_200, in: fixture)
            try await fixture.endpoints("remove shop")
            let counts = """
                SELECT (SELECT count(*) FROM siwa.endpoints) || ' ' || (SELECT count(*) FROM siwa.endpoint_secrets) || ' '
                    || (SELECT count(*) FROM siwa.deliveries) || ' ' || (SELECT count(*) FROM siwa.change_log)
                """
            #expect(try await fixture.texts(counts) == ["0 0 0 1200"])
            #expect(try await fixture.audit().last == "endpoints remove: shop: why")
        }
    }

    @Test("The list fits in 80 columns, and says why each endpoint is not delivered to.")
    func list() async throws {
        try await DaemonFixture.with { fixture in
            for name in ["shop", "crm", "idp", "old"] {
                // A public address, which siwad doctor needs not look up.
                try await fixture.endpoints("add \(name) --url https://1.0.0.1/hooks --type consent.authorized")
            }
            try await Changes.publish(2, in: fixture)
            try await fixture.run(
                """
                UPDATE siwa.deliveries AS d SET status = 'delivered', next_attempt_at = NULL, resolved_at = now()
                FROM siwa.endpoints AS e WHERE e.endpoint_id = d.endpoint_id AND e.name = 'shop';
                UPDATE siwa.endpoint_states AS s
                SET failing_since = now(), open_until = now() + interval '250 s', probe_delay = interval '5 min',
                    last_reason = 'failed', last_http_status = 503
                FROM siwa.endpoints AS e WHERE e.endpoint_id = s.endpoint_id AND e.name = 'crm';
                UPDATE siwa.endpoint_states SET last_success_at = now();
                UPDATE siwa.endpoints SET status = 'disabled', status_reason = 'gone' WHERE name = 'old'
                """
            )
            try await fixture.endpoints("pause idp")
            let wide = try await fixture.endpoints("list")
            let rows = Dictionary(
                uniqueKeysWithValues: wide.lines.dropFirst().map { line in
                    let words = line.split(separator: " ")
                    return (words[0], words.dropFirst().joined(separator: " "))
                }
            )
            #expect(rows["shop"]?.hasPrefix("enabled 0 - 0 0 20") == true, "\(wide.output)")
            #expect(rows["shop"]?.hasSuffix(" -") == true)
            #expect(rows["crm"]?.contains("failed (HTTP 503); probed again in 4 min") == true, "\(wide.output)")
            #expect(rows["idp"]?.hasPrefix("paused 2 ") == true && rows["idp"]?.hasSuffix("operator: why") == true)
            #expect(rows["old"]?.hasSuffix("gone: the receiver wants no more") == true)
            let narrow = try await siwadOnTerminal(
                ["endpoints", "list"],
                columns: 80,
                environment: fixture.environment()
            )
            #expect(narrow.lines.count == 5 && narrow.lines.allSatisfy { $0.count <= 80 }, "\(narrow.output)")

            let doctor = try await siwad(["doctor", "--json"], environment: fixture.environment())
            func finding(_ name: String) throws -> JSONValue {
                let objects = try doctor.lines.map { try JSONValue(parsing: Array($0.utf8)) }
                return try #require(
                    objects.first { $0["check"]?.string == "endpoints" && $0["subject"]?.string == name }
                )
            }
            #expect(try finding("shop")["status"]?.string == "pass")
            #expect(try finding("crm")["status"]?.string == "warn")
            #expect(try finding("idp")["status"]?.string == "pass")
            #expect(try finding("old")["status"]?.string == "fail")
            try await fixture.run("UPDATE siwa.deliveries SET created_at = now() - interval '2 h'")
            let late = try await siwad(["doctor"], environment: fixture.environment())
            #expect(late.output.contains("idp: paused (operator: why), 2 behind, the oldest for 2 h"), "\(late.output)")
        }
    }

    @Test("siwad doctor says which endpoints have an address that siwad doesn't connect to, and the next step.")
    func addresses() async throws {
        try await DaemonFixture.with { fixture in
            let urls = [
                "private": "https://10.1.2.3/x?\(DaemonFixture.receiverQuery)", "plain": "http://1.0.0.1/",
                "public": "https://1.0.0.1/",
                "unknown": "https://nowhere.invalid/", "hex": "https://0x7f.1/", "rest": "https://10.1.2.3/",
            ]
            for (name, url) in urls { try await fixture.endpoints("add \(name) --url \(url)") }
            try await fixture.endpoints("pause rest")
            func findings(_ settings: [String: String] = [:]) async throws -> [String: String] {
                let run = try await siwad(["doctor", "--json"], environment: fixture.environment(settings))
                #expect(!run.output.contains(DaemonFixture.receiverQuery))
                let found = try run.lines.map { try JSONValue(parsing: Array($0.utf8)) }
                    .filter { $0["check"]?.string == "endpoints" }
                return Dictionary(
                    uniqueKeysWithValues: found.map { finding in
                        let texts = ["status", "detail", "remedy"].map { finding[$0]?.string ?? "" }
                        return (finding["subject"]?.string ?? "", texts.joined(separator: " | "))
                    }
                )
            }
            func edit(_ name: String) -> String { "siwad endpoints edit \(name) --url" }
            let found = try await findings()
            #expect(
                found["private"]?.contains("fail | enabled, 0 behind; 10.1.2.3 is not a public address | ") == true
                    && found["private"]?.contains("SIWAD_DELIVERY_ALLOW=10.1.2.3/32 allows it, or") == true
                    && found["private"]?.contains(edit("private")) == true,
                "\(found)"
            )
            #expect(found["plain"]?.contains("fail | enabled, 0 behind; http: to 1.0.0.1 is not encrypted") == true)
            #expect(found["hex"]?.contains("fail | enabled, 0 behind; 127.0.0.1 is not a public address") == true)
            #expect(found["public"] == "pass | enabled, 0 behind | ")
            #expect(
                found["unknown"]?.hasPrefix("warn | enabled, 0 behind; the host name nowhere.invalid is not") == true
                    && found["unknown"]?.contains(edit("unknown")) == true
            )
            #expect(
                found["rest"]?.contains("warn | paused (operator: why), 0 behind; 10.1.2.3 is not a public") == true
            )
            let allowed = try await findings(["SIWAD_DELIVERY_ALLOW": "10.0.0.0/8,127.0.0.0/8,1.0.0.0/8"])
            #expect(allowed.filter { $0.value.hasPrefix("pass") }.count == 5, "\(allowed)")
        }
    }

    @Test("test posts a signed event that exists nowhere else, and its exit code says what the receiver did.")
    func test() async throws {
        try await DaemonFixture.with { fixture in
            let allowed = ["SIWAD_DELIVERY_ALLOW": "127.0.0.1/32"]
            try await fixture.endpoints("add shop --url \(fixture.endpoint.url)")
            fixture.endpoint.now(.status(204))
            let accepted = try await fixture.attemptEndpoints(["test", "shop"], allowed)
            #expect(accepted.status == 0, "\(accepted.errors)")
            #expect(accepted.output.contains("127.0.0.1") && accepted.output.contains("204, in "), "\(accepted.output)")
            let example = try await fixture.attemptEndpoints(["test", "shop", "--type", "account.deleted"], allowed)
            #expect(example.status == 0)
            fixture.endpoint.now(.status(500))
            let refused = try await fixture.attemptEndpoints(["test", "shop"], allowed)
            #expect(refused.status == 1 && refused.errors.contains("500"), "\(refused.errors)")
            let blocked = try await fixture.attemptEndpoints(["test", "shop"])
            #expect(blocked.status == 69 && blocked.errors.contains("SIWAD_DELIVERY_ALLOW"), "\(blocked.errors)")
            try await fixture.endpoints("edit shop --url http://127.0.0.1:1/")
            let unreachable = try await fixture.attemptEndpoints(["test", "shop"], allowed)
            #expect(unreachable.status == 69 && unreachable.errors.contains("unreachable"), "\(unreachable.errors)")
            #expect(try await fixture.deliveryPositions().isEmpty)
        }
    }

    @Test("test fails for every answer that is no delivery, whatever its status, and says what siwad would do.")
    func testOutcomes() async throws {
        try await DaemonFixture.with { fixture in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await fixture.endpoints("add shop --url \(receiver.url)")
                let cases: [(status: Int, fields: [String: String], words: String)] = [
                    (200, ["webhook-delivery": "disable"], "asks for no more events, so siwad would disable"),
                    (410, [:], "asks for no more events, so siwad would disable"),
                    (400, ["webhook-delivery": "abort-message"], "siwad would give the event up"),
                    (429, ["Retry-After": "7"], "siwad would wait for 7 s"),
                    (307, ["Location": "/other"], "which siwad does not follow"),
                    (503, [:], "siwad would attempt the event again"),
                ]
                for (status, fields, words) in cases {
                    receiver.answer { _, _ in .status(status, fields) }
                    let allowed = ["SIWAD_DELIVERY_ALLOW": "127.0.0.1/32"]
                    let run = try await fixture.attemptEndpoints(["test", "shop"], allowed)
                    #expect(run.status == 1, "\(status) \(fields)")
                    #expect(run.errors.contains("answered \(status)") && run.errors.contains(words), "\(run.errors)")
                    #expect(run.output.contains("\(status), in "), "\(run.output)")
                }
            }
        }
    }

    @Test("siwad_reader sees the endpoints and deliveries, and neither reads a secret nor changes anything.")
    func reader() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.endpoints("add shop --url \(DaemonFixture.receiverURL) --type consent.authorized")
            try await Changes.publish(1, in: fixture)
            let name = "reader_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(name) LOGIN IN ROLE siwad_reader")
            let settings = Sealing.settings.merging(["SIWAD_DATABASE_URL": "\(fixture.conninfo) user=\(name)"]) { $1 }
            func reads(_ line: String) async throws -> CommandRun {
                let words = line.split(separator: " ").map(String.init)
                return try await siwad(words, environment: fixture.environment(settings))
            }
            for line in [
                "endpoints list", "endpoints show shop", "deliveries list --status any", "deliveries show shop/1",
                "deliveries stats", "changes show 1",
            ] {
                let run = try await reads(line)
                #expect(run.status == 0, "\(line): \(run.errors)")
            }
            let json = try await reads("endpoints list --json")
            #expect(json.output.contains(#""secret_fingerprint":null"#))
            for line in [
                "endpoints secret shop", "endpoints pause shop --note x", "endpoints remove shop --note x",
                "deliveries discard shop/1 --status pending --note x", "endpoints seek shop --position 1 --note x",
            ] {
                let run = try await reads(line)
                #expect(run.status != 0 && run.output.isEmpty, "\(line)")
                #expect(run.errorLines.count == 1 && run.errors.hasPrefix("siwad: "), "\(line): \(run.errors)")
            }
            try await fixture.run("DROP ROLE \(name)")
            #expect(try await fixture.audit() == ["endpoints add: shop: why"])
        }
    }

    @Test("siwad_daemon's rights suffice for every command.")
    func daemonRole() async throws {
        try await DaemonFixture.with { fixture in
            let name = "daemon_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(name) LOGIN IN ROLE siwad_daemon")
            let settings = Sealing.settings.merging(["SIWAD_DATABASE_URL": "\(fixture.conninfo) user=\(name)"]) { $1 }
            try await Changes.publish(2, in: fixture)
            for line in [
                "endpoints add shop --url https://a.example --type consent.authorized --from-start",
                "endpoints edit shop --timeout 3s", "endpoints rotate shop", "endpoints pause shop",
                "endpoints resume shop", "deliveries discard shop/1 --status pending",
                "deliveries retry --all --status any", "endpoints seek shop --end", "endpoints seek shop --position 1",
                "endpoints remove shop",
            ] {
                let words = line.split(separator: " ").map(String.init) + ["--note", "why"]
                let run = try await siwad(words, environment: fixture.environment(settings))
                #expect(run.status == 0, "\(line): \(run.errors)")
            }
            try await fixture.run("DROP ROLE \(name)")
        }
    }
}
