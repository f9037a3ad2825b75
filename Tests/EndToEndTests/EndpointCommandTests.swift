import AccountStore
import Glibc
import JOSE
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("siwad endpoints", .timeLimit(.minutes(10)))
struct EndpointCommandTests {
    private static let query = "token=hidden-in-the-query"
    private static let url = "https://shop.example.com/hooks/siwa?\(query)"

    private func run(
        _ arguments: [String],
        _ fixture: DaemonFixture,
        _ settings: [String: String] = [:]
    ) async throws -> CommandRun {
        try await siwad(
            ["endpoints"] + arguments,
            environment: fixture.environment(Sealing.settings.merging(settings) { $1 })
        )
    }

    /// As ``run(_:_:_:)``, for a command that has to succeed.
    @discardableResult
    private func done(_ line: String, _ fixture: DaemonFixture) async throws -> CommandRun {
        let audited = ["add", "edit", "apply", "rotate", "pause", "resume", "seek", "remove"]
        let words = line.split(separator: " ").map(String.init)
        let note = audited.contains(words[0]) && !words.contains("--dry-run") ? ["--note", "why"] : []
        let run = try await run(words + note, fixture)
        #expect(run.status == 0, "\(line): \(run.errors)")
        return run
    }

    private func deliveries(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts("SELECT position || ' ' || status FROM siwa.deliveries ORDER BY position")
    }

    private func audit(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts(
            "SELECT action || ': ' || target || ': ' || note FROM siwa.operator_actions ORDER BY action_id"
        )
    }

    @Test("An added endpoint gets the changes that follow, or with --from-start and --since earlier ones too.")
    func add() async throws {
        try await DaemonFixture.with { fixture in
            try await Changes.publish(3, in: fixture)
            try await done("add later --url \(Self.url) --type consent.authorized", fixture)
            try await done("add all --url \(Self.url) --type siwa.consent.authorized --from-start", fixture)
            try await done("add none --url \(Self.url) --since now --app com.example.two", fixture)
            try await done("add usual --url \(Self.url) --since 1h", fixture)
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
                try await audit(fixture).prefix(3) == [
                    "endpoints add: later: why", "endpoints add: all: why", "endpoints add: all: why",
                ]
            )
            let again = try await run(["add", "all", "--url", Self.url, "--note", "x"], fixture)
            let edit = "all exists already: siwad endpoints edit all --url … --note '…' changes it"
            #expect(again.status == 1 && again.errors.contains(edit), "\(again.errors)")
        }
    }

    @Test(
        "An endpoint that nothing could be delivered to is refused, and nothing is stored.",
        arguments: [
            ["Shop", "--url", url], ["sh.op", "--url", url], ["sh_op", "--url", url], ["", "--url", url],
            [String(repeating: "a", count: 64), "--url", url],
            ["shop"], ["shop", "--url", "shop.example.com"], ["shop", "--url", "ftp://shop.example.com/"],
            ["shop", "--url", "https://user:pass@shop.example.com/"], ["shop", "--url", "https://shop.example.com/#a"],
            ["shop", "--url", "https://[fe80::1%25eth0]/"], ["shop", "--url", "https://shop.example.com:0/"],
            ["shop", "--url", "https://shop.example.com:65536/"], ["shop", "--url", "https://schön.example.com/"],
            ["shop", "--url", "https://shop.example.com/" + String(repeating: "a", count: 2_048)],
            ["shop", "--url", "https:///path"], ["shop", "--url", "https://shop.example.com/a b"],
            ["shop", "--url", url, "--type", "account.renamed"], ["shop", "--url", url, "--ordering", "strict"],
            ["shop", "--url", url, "--concurrency", "0"], ["shop", "--url", url, "--concurrency", "65"],
            ["shop", "--url", url, "--timeout", "999ms"], ["shop", "--url", url, "--timeout", "61s"],
            ["shop", "--url", url, "--rate", "0"], ["shop", "--url", url, "--rate", "-1"],
            ["shop", "--url", url, "--rate", "nan"], ["shop", "--url", url, "--rate", "1e20"],
            ["shop", "--url", url, "--retries", "5s,-1s"],
            ["shop", "--url", url, "--retries", ""], ["shop", "--url", url, "--retries", ","],
            ["shop", "--url", url, "--retries", "soon"], ["shop", "--url", url, "--signature", "rsa"],
            ["shop", "--url", url, "--include", "names"], ["shop", "--url", url, "--disable-after", "-1s"],
            ["shop", "--url", url, "--from-start", "--since", "1h"],
        ]
    )
    func refusal(arguments: [String]) async throws {
        try await DaemonFixture.with { fixture in
            let run = try await run(["add", "--note", "why"] + arguments, fixture)
            #expect(run.status == 64 && run.errorLines.count == 1, "\(run.errors)")
            #expect(!run.errors.contains("pass@") && !run.errors.contains("hidden-in-the-query"), "\(run.errors)")
            #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
        }
    }

    @Test("Unknown apps, unknown endpoints and missing notes are refused with the next step.")
    func mistakes() async throws {
        try await DaemonFixture.with { fixture in
            let app = try await run(
                ["add", "a", "--url", Self.url, "--app", "com.example.none", "--note", "x"],
                fixture
            )
            #expect(app.status == 1 && app.errors.contains("no app com.example.none is registered"), "\(app.errors)")
            let unnamed = try await run(["pause", "shop", "--note", "x"], fixture)
            #expect(unnamed.status == 4 && unnamed.errors.contains("endpoints add"), "\(unnamed.errors)")
            try await done("add shop --url \(Self.url)", fixture)
            let other = try await run(["remove", "shopp", "--note", "x"], fixture)
            #expect(other.status == 4 && other.errors.contains("the names in use are shop"), "\(other.errors)")
            for verb in ["edit", "rotate", "pause", "resume", "seek", "remove"] {
                let run = try await run([verb, "shop"], fixture)
                #expect(run.status == 64 && run.errors.contains("--note must say why"), "\(verb): \(run.errors)")
            }
            #expect(try await audit(fixture) == ["endpoints add: shop: why"])
        }
    }

    @Test("Without sealing keys, add exits with 78 and names the command that prints one.")
    func unsealed() async throws {
        try await DaemonFixture.with { fixture in
            let add = ["endpoints", "add", "shop", "--url", Self.url, "--note", "x"]
            let run = try await siwad(add, environment: fixture.environment())
            #expect(run.status == 78 && run.errors.contains("siwad sealing new-key"), "\(run.errors)")
            #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
        }
    }

    @Test("The secret is printed for the receiver only, and rotation ends the old one after the overlap or now.")
    func secrets() async throws {
        try await DaemonFixture.with { fixture in
            try await done("add shop --url \(Self.url) --signature both", fixture)
            let first = try await done("secret shop", fixture).lines.map(String.init)
            #expect(first.count == 2 && first[0].hasPrefix("whsec_") && first[1].hasPrefix("whpk_"))
            let before = try await fixture.texts("SELECT revision::text FROM siwa.endpoints")
            try await done("rotate shop --overlap 1h", fixture)
            let second = try await done("secret shop", fixture).lines.map(String.init)
            #expect(second[0] != first[0] && second[1] != first[1])
            #expect(try await fixture.texts("SELECT revision::text FROM siwa.endpoints") != before)
            let live = """
                SELECT concat_ws(' ', purpose, generation, round(extract(epoch FROM expires_at - now()) / 60))
                FROM siwa.endpoint_secrets WHERE expires_at IS NULL OR expires_at > now() ORDER BY 1
                """
            #expect(try await fixture.texts(live) == ["ed25519 1 60", "ed25519 2", "hmac 1 60", "hmac 2"])
            try await done("rotate shop --now", fixture)
            #expect(try await fixture.texts(live) == ["ed25519 3", "hmac 3"])

            try await TemporaryDirectory.with { directory in
                let file = try directory.write("secret", second[0] + "\n")
                try await done("rotate shop --secret-file \(file)", fixture)
                #expect(try await done("secret shop", fixture).lines.first == second[0][...])
                let malformed = try directory.write("malformed", "whsec_c2hvcnQ=\n")
                let run = try await run(["rotate", "shop", "--secret-file", malformed, "--note", "x"], fixture)
                #expect(run.status == 1 && !run.errors.contains("c2hvcnQ"), "\(run.errors)")
            }
            let both = try await run(["rotate", "shop", "--now", "--overlap", "1h", "--note", "x"], fixture)
            #expect(both.status == 64)
        }
    }

    @Test("A sealed row that was altered, or copied to another endpoint, opens nothing.")
    func swappedRows() async throws {
        try await DaemonFixture.with { fixture in
            try await done("add one --url \(Self.url)", fixture)
            try await done("add two --url \(Self.url)", fixture)
            try await fixture.run(
                """
                UPDATE siwa.endpoint_secrets AS s SET sealed = (
                    SELECT sealed FROM siwa.endpoint_secrets JOIN siwa.endpoints USING (endpoint_id) WHERE name = 'one'
                )
                FROM siwa.endpoints AS e WHERE e.endpoint_id = s.endpoint_id AND e.name = 'two'
                """
            )
            let swapped = try await run(["secret", "two"], fixture)
            #expect(swapped.status == 78 && swapped.output.isEmpty && swapped.errors.contains("rotate two --now"))
            try await fixture.run("UPDATE siwa.endpoint_secrets SET sealed = set_byte(sealed, 100, 65)")
            #expect(try await run(["secret", "one"], fixture).status == 78)
            let other = ["SIWAD_SEALING_KEYS": "other:\(String(repeating: "Q", count: 43))="]
            #expect(try await run(["secret", "one"], fixture, other).status == 78)
            try await done("rotate one --now", fixture)
            try await done("secret one", fixture)
        }
    }

    @Test("Pausing and resuming loses nothing; --from-end and seek --end discard what waits; seek delivers again.")
    func seeking() async throws {
        try await DaemonFixture.with { fixture in
            try await done("add shop --url \(Self.url) --type consent.authorized", fixture)
            try await done("pause shop", fixture)
            try await Changes.publish(4, in: fixture)
            try await done("resume shop", fixture)
            #expect(try await deliveries(fixture) == ["1 pending", "2 pending", "3 pending", "4 pending"])
            try await fixture.run(
                """
                UPDATE siwa.deliveries SET status = 'delivered', next_attempt_at = NULL, resolved_at = now(), attempts = 1
                WHERE position <= 2;
                UPDATE siwa.deliveries SET status = 'dead', next_attempt_at = NULL, reason = 'refused',
                    first_failed_at = now(), attempts = 10
                WHERE position = 3;
                DELETE FROM siwa.deliveries WHERE position = 1;
                UPDATE siwa.endpoint_states
                SET failing_since = now(), open_until = now() + interval '1 min', probe_delay = interval '10 s'
                """
            )
            #expect(try await done("list", fixture).output.contains("open"))
            let seek = try await done("seek shop --position 1", fixture)
            #expect(seek.output.contains("3 changes"), "\(seek.output)")
            #expect(try await deliveries(fixture) == ["1 pending", "2 pending", "3 pending", "4 pending"])
            #expect(try await fixture.texts("SELECT DISTINCT attempts::text FROM siwa.deliveries") == ["0"])
            let again = try await run(["seek", "shop", "--since", "1h", "--note", "x"], fixture)
            #expect(again.status == 4, "\(again.errors)")

            try await done("seek shop --end", fixture)
            #expect(
                Set(try await fixture.texts("SELECT status || ' ' || note FROM siwa.deliveries")) == ["discarded why"]
            )
            try await done("seek shop --since 1h", fixture)
            try await done("pause shop", fixture)
            try await done("resume shop --from-end", fixture)
            #expect(Set(try await fixture.texts("SELECT status FROM siwa.deliveries")) == ["discarded"])
            #expect(
                try await fixture.texts(
                    "SELECT count(open_until)::text || count(failing_since) FROM siwa.endpoint_states"
                )
                    == ["00"]
            )
            let ahead = try await run(["seek", "shop", "--position", "6", "--note", "x"], fixture)
            #expect(
                ahead.status == 1 && ahead.errors.contains("ahead of the log, which ends with 4"),
                "\(ahead.errors)"
            )
            for wrong in [["--position", "0"], ["--end", "--since", "1h"], []] {
                #expect(try await run(["seek", "shop", "--note", "x"] + wrong, fixture).status == 64, "\(wrong)")
            }
            #expect(try await audit(fixture).contains("endpoints seek: shop --end: why"))
        }
    }

    @Test(
        "A daemon holds changes back during a pause, delivers them after it, and after a seek again with the same ids."
    )
    func pauseWhileDelivering() async throws {
        let settings = try DaemonFixture.delivering()
        try await DaemonFixture.withDaemon(settings) { fixture, _, _ in
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                func command(_ line: String) async throws {
                    let words = line.split(separator: " ").map(String.init) + ["--note", "why"]
                    let run = try await siwad(["endpoints"] + words, environment: fixture.environment(settings))
                    #expect(run.status == 0, "\(line): \(run.errors)")
                }
                func delivered(_ count: Int) async throws {
                    try await eventually("\(count) deliveries") {
                        try await fixture.deliveries() == ["shop delivered \(count)"]
                    }
                }
                try await fixture.addEndpoint("shop", receiver.url)
                try await command("pause shop")
                try await fixture.revoke(20)
                try await eventually("the deliveries") { try await fixture.deliveries() == ["shop pending 20"] }
                try await command("resume shop")
                try await delivered(20)
                let first = receiver.messages
                #expect(Set(first.compactMap(\.id)).count == 20)
                // Before the revocations, the people signed in.
                try await command("seek shop --position 31")
                try await eventually("the repeated deliveries") { receiver.messages.count == 30 }
                let repeated = receiver.messages.dropFirst(20).compactMap(\.id)
                #expect(repeated.sorted() == first.filter { $0.position > 30 }.compactMap(\.id).sorted())
                try await delivered(20)

                try await command("pause shop")
                try await fixture.run("DELETE FROM siwa.deliveries")
                try await fixture.revoke(5)
                try await eventually("the deliveries") { try await fixture.deliveries() == ["shop pending 5"] }
                try await command("resume shop --from-end")
                try await fixture.revoke(1)
                try await eventually("the change after it") {
                    try await fixture.deliveries() == ["shop delivered 1", "shop discarded 5"]
                }
                #expect(receiver.messages.count == 31)
            }
        }
    }

    @Test("An interrupted seek says how to go on, and keeps what it did.")
    func interruption() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await done("add shop --url \(Self.url) --type consent.authorized", fixture)
                try await Changes.publish(2_500, in: fixture)
                try await fixture.run("DELETE FROM siwa.deliveries")
                // The second batch waits for this row.
                try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(
                        script: """
                            INSERT INTO siwa.deliveries (endpoint_id, position, account_id)
                            SELECT endpoint_id, 1500, 1 FROM siwa.endpoints
                            """
                    )
                } _: {
                    let seek = fixture.start(
                        Sealing.settings,
                        arguments: ["endpoints", "seek", "shop", "--position", "1", "--note", "why"],
                        under: ["/usr/bin/env", "--default-signal=INT"]
                    )
                    try await eventually("the first batch") { try await deliveries(fixture).count == 1_000 }
                    seek.send("INT")
                    #expect(try await seek.end(within: .seconds(10)) == 128 + SIGINT)
                    #expect(seek.log.contains { $0.contains("up to position 1000") && $0.contains("--position 1001") })
                }
                try await done("seek shop --position 1001", fixture)
                #expect(try await deliveries(fixture).count == 2_500)
                let affected = "SELECT sum(affected)::text FROM siwa.operator_actions WHERE action = 'endpoints seek'"
                #expect(try await fixture.texts(affected) == ["2499"])
            }
        }
    }

    @Test("edit changes what is given, restores defaults, and makes the secret that another signature needs.")
    func edit() async throws {
        try await DaemonFixture.with { fixture in
            try await done("add shop --url \(Self.url) --timeout 5s --app com.example.one", fixture)
            try await done("edit shop --signature both --rate 0.5 --app default --retries 50ms,100ms", fixture)
            let row = """
                SELECT concat_ws(' ', timeout, rate, apps IS NULL, retries, signature, revision) FROM siwa.endpoints
                """
            #expect(try await fixture.texts(row) == ["00:00:05 0.5 t {00:00:00.05,00:00:00.1} both 2"])
            #expect(
                try await fixture.texts("SELECT purpose FROM siwa.endpoint_secrets ORDER BY 1") == ["ed25519", "hmac"]
            )
            let same = try await done("edit shop --rate 0.5", fixture)
            #expect(same.output.contains("nothing was changed"))
            #expect(try await audit(fixture).count == 2)
            #expect(try await run(["edit", "shop", "--note", "x"], fixture).status == 64)
            let show = try await done("show shop", fixture)
            #expect(show.output.contains("50ms, 100ms") && show.output.contains("all but siwa.consent.authorized"))
        }
    }

    /// The siwad commands that wait for a lock.
    private static let waiting = """
        SELECT pid::text FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'siwad' AND wait_event_type = 'Lock'
        """

    @Test("An edit keeps what an edit or an apply at the same time has changed.", arguments: [false, true])
    func simultaneousChanges(isApplied: Bool) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await TemporaryDirectory.with { directory in
                    try await done("add shop --url \(Self.url)", fixture)
                    let text = #"{"endpoints": {"shop": {"url": "\#(Self.url)", "timeout": "5s"}}}"#
                    let file = try directory.write("endpoints.json", text)
                    let first = isApplied ? ["apply", file] : ["edit", "shop", "--timeout", "5s"]
                    let commands = try await database.withOpenTransaction { session throws(PostgresError) in
                        try session.execute(script: "SELECT FROM siwa.endpoints FOR UPDATE")
                    } _: {
                        var commands: [DaemonProcess] = []
                        for words in [first, ["edit", "shop", "--rate", "0.5"]] {
                            let arguments = ["endpoints"] + words + ["--note", "why"]
                            commands.append(fixture.start(Sealing.settings, arguments: arguments))
                            let count = commands.count
                            try await eventually("\(count) to wait") {
                                try await fixture.texts(Self.waiting).count == count
                            }
                        }
                        return commands
                    }
                    for command in commands { #expect(try await command.end() == 0, "\(command.log)") }
                    let row = "SELECT concat_ws(' ', timeout, rate, revision) FROM siwa.endpoints"
                    #expect(try await fixture.texts(row) == ["00:00:05 0.5 3"])
                }
            }
        }
    }

    @Test("apply locks the publication before the endpoints, as remove does, so neither waits for the other forever.")
    func lockOrder() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await TemporaryDirectory.with { directory in
                    try await done("add shop --url \(Self.url)", fixture)
                    let added = #""crm": {"url": "https://crm.example.com/"}"#
                    let changed = #""shop": {"url": "https://shop.example.com/", "timeout": "5s"}"#
                    let file = try directory.write("endpoints.json", #"{"endpoints": {\#(changed), \#(added)}}"#)
                    let apply = try await database.withOpenTransaction { session throws(PostgresError) in
                        try session.execute(script: "SELECT FROM siwa.publication FOR UPDATE")
                    } _: {
                        let arguments = ["endpoints", "apply", file, "--note", "why"]
                        let apply = fixture.start(Sealing.settings, arguments: arguments)
                        try await eventually("apply to wait") { try await fixture.texts(Self.waiting).count == 1 }
                        let unlocked = "SELECT name FROM siwa.endpoints FOR UPDATE SKIP LOCKED"
                        #expect(try await fixture.texts(unlocked) == ["shop"])
                        return apply
                    }
                    #expect(try await apply.end() == 0, "\(apply.log)")
                    let rows = "SELECT name || ' ' || timeout FROM siwa.endpoints ORDER BY name"
                    #expect(try await fixture.texts(rows) == ["crm 00:00:15", "shop 00:00:05"])
                }
            }
        }
    }

    @Test(
        "An endpoint that somebody pauses while it is filled stays paused, and the command says so; resuming it is right.",
        arguments: ["pause", "resume"]
    )
    func changedWhileFilled(verb: String) async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await done("add other --url \(Self.url) --type consent.authorized", fixture)
                try await Changes.publish(2, in: fixture)
                let add = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "LOCK TABLE siwa.deliveries IN SHARE MODE")
                } _: {
                    let arguments = ["endpoints", "add", "shop", "--url", Self.url, "--from-start", "--note", "why"]
                    let add = fixture.start(Sealing.settings, arguments: arguments)
                    try await eventually("the command to fill it") { try await fixture.texts(Self.waiting).count == 1 }
                    try await done("\(verb) shop", fixture)
                    return add
                }
                let isPaused = verb == "pause"
                #expect(try await add.end() == (isPaused ? 1 : 0))
                let step = "siwad endpoints resume shop --note"
                #expect(add.log.contains { $0.contains(step) } == isPaused, "\(add.log)")
                let status = "SELECT status FROM siwa.endpoints WHERE name = 'shop'"
                #expect(try await fixture.texts(status) == [isPaused ? "paused" : "enabled"])
                #expect(try await audit(fixture).last == "endpoints \(verb): shop: why")
                if isPaused { try await done("resume shop", fixture) }
                #expect(try await fixture.texts(status) == ["enabled"])
            }
        }
    }

    @Test("A removal that is interrupted says that the endpoint is paused, and how to go on.")
    func interruptedRemoval() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await done("add shop --url \(Self.url) --type consent.authorized", fixture)
                try await Changes.publish(2, in: fixture)
                let remove = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "SELECT FROM siwa.deliveries WHERE position = 2 FOR UPDATE")
                } _: {
                    let remove = fixture.start(arguments: ["endpoints", "remove", "shop", "--note", "why"])
                    try await eventually("the command to wait") { try await fixture.texts(Self.waiting).count == 1 }
                    remove.send("INT")
                    #expect(try await remove.end(within: .seconds(8)) != 0)
                    return remove
                }
                let words = "shop is paused, and 0 of its deliveries are deleted; siwad endpoints remove shop --note"
                #expect(remove.log.contains { $0.contains(words) }, "\(remove.log)")
                try await done("remove shop", fixture)
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
            }
        }
    }

    @Test("What a daemon has locked is discarded later, and a command that can't discard it in time ends with 2.")
    func lockedDeliveries() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await done("add shop --url \(Self.url) --type consent.authorized", fixture)
                try await Changes.publish(4, in: fixture)
                let seek = try await database.withOpenTransaction { session throws(PostgresError) in
                    try session.execute(script: "SELECT FROM siwa.deliveries WHERE position = 2 FOR UPDATE")
                } _: {
                    let arguments = ["endpoints", "seek", "shop", "--end", "--note", "why"]
                    let seek = fixture.start(Sealing.settings, arguments: arguments)
                    try await eventually("the other changes to be discarded") {
                        try await deliveries(fixture) == ["1 discarded", "2 pending", "3 discarded", "4 discarded"]
                    }
                    try await Changes.publish(1, in: fixture)
                    return seek
                }
                #expect(try await seek.end() == 0, "\(seek.log)")
                #expect(seek.log.contains { $0.contains("4 changes discarded") }, "\(seek.log)")
                let kept = ["1 discarded", "2 discarded", "3 discarded", "4 discarded", "5 pending"]
                #expect(try await deliveries(fixture) == kept)

                try await done("pause shop", fixture)
                let resume = try await database.withOpenTransaction { session throws(PostgresError) in
                    // The transaction stays open for longer than a connection usually waits for a lock.
                    try session.execute(
                        script: """
                            SET LOCAL lock_timeout = '60 s';
                            SELECT FROM siwa.deliveries WHERE position = 5 FOR UPDATE
                            """
                    )
                } _: {
                    try await run(["resume", "shop", "--from-end", "--note", "x"], fixture)
                }
                let left = "0 changes discarded; another session has locked 1 more"
                #expect(resume.status == 2 && resume.errors.contains(left), "\(resume.errors)")
                #expect(try await fixture.texts("SELECT status FROM siwa.endpoints") == ["paused"])
                try await done("seek shop --end", fixture)
                let nothing = try await run(["seek", "shop", "--end", "--note", "x"], fixture)
                #expect(nothing.status == 4 && nothing.errors.contains("no change waits for shop"), "\(nothing.errors)")
                try await done("resume shop --from-end", fixture)
            }
        }
    }

    @Test("The reason for a pause is that of the latest command that paused the endpoint, even if that command failed.")
    func pauseReasons() async throws {
        try await DaemonFixture.with { fixture in
            func reason(_ name: String, after arguments: [String], _ note: String) async throws -> String? {
                let failed = try await run(arguments + ["--note", note], fixture)
                #expect(failed.status == 1, "\(arguments): \(failed.errors)")
                return try await done("list", fixture).lines.first { $0.hasPrefix("\(name) ") }.map(String.init)
            }
            try await done("add shop --url \(Self.url) --type consent.authorized", fixture)
            try await Changes.publish(2, in: fixture)
            try await done("pause shop", fixture)
            try await done("resume shop", fixture)
            try await fixture.run(
                """
                CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    RAISE EXCEPTION 'refused';
                END
                $$;
                CREATE TRIGGER refuse BEFORE INSERT OR DELETE ON siwa.deliveries
                    FOR EACH ROW EXECUTE FUNCTION public.refuse();
                """
            )
            let removed = try await reason("shop", after: ["remove", "shop"], "not needed")
            #expect(removed?.hasSuffix("operator: not needed") == true, "\(removed ?? "")")
            let add = ["add", "crm", "--url", Self.url, "--type", "consent.authorized", "--from-start"]
            let added = try await reason("crm", after: add, "all changes")
            #expect(added?.hasSuffix("operator: all changes") == true, "\(added ?? "")")
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("endpoints.yaml", "endpoints:\n")
                let pruned = try await reason("shop", after: ["apply", file, "--prune"], "clean up")
                #expect(pruned?.hasSuffix("operator: clean up") == true, "\(pruned ?? "")")
            }
            try await done("pause shop", fixture)
            let doctor = try await siwad(["endpoints", "show", "shop"], environment: fixture.environment())
            #expect(doctor.output.contains("operator: why"), "\(doctor.output)")
        }
    }

    @Test("remove deletes the endpoint with its secrets and deliveries, and keeps the published changes.")
    func remove() async throws {
        try await DaemonFixture.with { fixture in
            try await done("add shop --url \(Self.url) --type consent.authorized", fixture)
            try await Changes.publish(1_200, in: fixture)
            try await done("remove shop", fixture)
            let counts = """
                SELECT (SELECT count(*) FROM siwa.endpoints) || ' ' || (SELECT count(*) FROM siwa.endpoint_secrets) || ' '
                    || (SELECT count(*) FROM siwa.deliveries) || ' ' || (SELECT count(*) FROM siwa.change_log)
                """
            #expect(try await fixture.texts(counts) == ["0 0 0 1200"])
            #expect(try await audit(fixture).last == "endpoints remove: shop: why")
        }
    }

    @Test("apply makes the table say what the file says, once; a dry run changes nothing; --prune removes the rest.")
    func apply() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let flow = try directory.write(
                    "flow.yaml",
                    """
                    endpoints:
                      shop: {url: https://shop.example.com/hooks/siwa, types: [siwa.consent.revoked, siwa.account.deleted], apps: [com.example.one], ordering: person}
                      crm:  # block style
                        url: "https://crm.example.com/hooks"
                        types:
                          - email.forwarding_disabled
                        timeout: 5s

                    """
                )
                let dry = try await done("apply \(flow) --dry-run", fixture)
                #expect(
                    dry.lines.map { $0.split(separator: " ").prefix(2).joined(separator: " ") } == [
                        "NAME OUTCOME", "shop added", "crm added",
                    ]
                )
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
                try await done("apply \(flow)", fixture)
                let rows = """
                    SELECT concat_ws(' ', name, url, types, apps, ordering, timeout) FROM siwa.endpoints ORDER BY name
                    """
                let expected = [
                    "crm https://crm.example.com/hooks {siwa.email.forwarding_disabled} attempt 00:00:05",
                    "shop https://shop.example.com/hooks/siwa {siwa.consent.revoked,siwa.account.deleted} {com.example.one} person 00:00:15",
                ]
                #expect(try await fixture.texts(rows) == expected)
                try await done("pause crm", fixture)
                let actions = try await audit(fixture)
                let again = try await done("apply \(flow) --json", fixture)
                #expect(
                    again.lines.allSatisfy { $0.hasSuffix(#""outcome":"unchanged","changed":[]}"#) },
                    "\(again.output)"
                )
                #expect(try await audit(fixture) == actions)

                let json = try directory.write(
                    "less.json",
                    """
                    {
                      "endpoints": {
                        "crm": {"url": "https://crm.example.com/hooks", "timeout": "9s"}
                      }
                    }
                    """
                )
                let kept = try await done("apply \(json)", fixture)
                #expect(kept.output.contains("types, timeout") && kept.errors.contains("--prune removes it"))
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").count == 2)
                try await done("apply \(json) --prune --dry-run", fixture)
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").count == 2)
                try await done("apply \(json) --prune", fixture)
                #expect(try await fixture.texts("SELECT name || ' ' || status FROM siwa.endpoints") == ["crm paused"])
                #expect(
                    try await fixture.texts(
                        "SELECT name FROM siwa.endpoint_secrets JOIN siwa.endpoints USING (endpoint_id)"
                    ) == ["crm"]
                )
                #expect(try await audit(fixture).last == "endpoints apply: remove shop: why")
            }
        }
    }

    @Test(
        "apply refuses a file with a mistake, names its line, and changes nothing.",
        arguments: [
            ("endpoints:\n  shop:\n    url: https://a.example\n    colour: red\n", ":4: colour is not a key"),
            ("endpoints:\n  shop: {url: https://a.example, secret: whsec_abc}\n", ":2: secret is not a key"),
            ("endpoints:\n  shop:\n    url: https://a.example\n    url: https://b.example\n", ":4: url is set twice"),
            ("endpoints:\n  shop:\n    timeout: 5s\n", ":2: shop has no url"),
            ("endpoints:\n  shop:\n    url: https://u:p@a.example\n", ":3: url: "),
            ("endpoints:\n  Shop:\n    url: https://a.example\n", ":2: name an endpoint"),
            (
                "endpoints:\n  a:\n    url: https://a.example\n    types: [nothing]\n",
                ":4: types: nothing is not a type"
            ),
            ("endpoints:\n  a:\n    url: https://a.example\n    types: []\n", ":4: types: write a value"),
            ("endpoints:\n  a:\n    url: https://a.example\n    timeout: [1s, 2s]\n", ":4: timeout: write one value"),
            ("endpoints:\n  a: {url: https://a.example\n", ":3"), ("endpoints: &x\n", ":1:"),
            ("endpoints:\n  a:\n    url: >\n      https://a.example\n", ":3:"),
            ("endpoints:\n  a:\n\turl: https://a.example\n", ":3"), ("other: 1\n", ":1: write the endpoints below"),
            ("endpoints:\n  a:\n    url: https://a.example\n   rate: 1\n", ":4"), ("- a\n", ":1"),
            ("{\"endpoints\": {\"a\": {\"url\": \"https://a.example\"} \"b\": 1}}", ":1:"),
        ]
    )
    func malformedFile(text: String, message: String) async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let file = try directory.write("endpoints.yaml", text)
                let run = try await run(["apply", file, "--note", "x"], fixture)
                #expect(run.status == 78 && run.errors.contains("endpoints.yaml\(message)"), "\(run.errors)")
                #expect(!run.errors.contains("whsec_") && !run.errors.contains("u:p"))
                #expect(try await fixture.texts("SELECT name FROM siwa.endpoints").isEmpty)
            }
        }
    }

    @Test("The list fits in 80 columns, and says why each endpoint is not delivered to.")
    func list() async throws {
        try await DaemonFixture.with { fixture in
            for name in ["shop", "crm", "idp", "old"] {
                // A public address, which siwad doctor needs not look up.
                try await done("add \(name) --url https://1.0.0.1/hooks --type consent.authorized", fixture)
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
            try await done("pause idp", fixture)
            let wide = try await done("list", fixture)
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
                "private": "https://10.1.2.3/x?\(Self.query)", "plain": "http://1.0.0.1/", "public": "https://1.0.0.1/",
                "unknown": "https://nowhere.invalid/", "hex": "https://0x7f.1/", "rest": "https://10.1.2.3/",
            ]
            for (name, url) in urls { try await done("add \(name) --url \(url)", fixture) }
            try await done("pause rest", fixture)
            func findings(_ settings: [String: String] = [:]) async throws -> [String: String] {
                let run = try await siwad(["doctor", "--json"], environment: fixture.environment(settings))
                #expect(!run.output.contains(Self.query))
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
            try await done("add shop --url \(fixture.endpoint.url)", fixture)
            fixture.endpoint.now(.status(204))
            let accepted = try await run(["test", "shop"], fixture, allowed)
            #expect(accepted.status == 0, "\(accepted.errors)")
            #expect(accepted.output.contains("127.0.0.1") && accepted.output.contains("204, in "), "\(accepted.output)")
            let example = try await run(["test", "shop", "--type", "account.deleted"], fixture, allowed)
            #expect(example.status == 0)
            fixture.endpoint.now(.status(500))
            let refused = try await run(["test", "shop"], fixture, allowed)
            #expect(refused.status == 1 && refused.errors.contains("500"), "\(refused.errors)")
            let blocked = try await run(["test", "shop"], fixture)
            #expect(blocked.status == 69 && blocked.errors.contains("SIWAD_DELIVERY_ALLOW"), "\(blocked.errors)")
            try await done("edit shop --url http://127.0.0.1:1/", fixture)
            let unreachable = try await run(["test", "shop"], fixture, allowed)
            #expect(unreachable.status == 69 && unreachable.errors.contains("unreachable"), "\(unreachable.errors)")
            #expect(try await deliveries(fixture).isEmpty)
        }
    }

    @Test("No command but secret prints a secret or the query of a URL, and no table has one in clear text.")
    func hiddenSecrets() async throws {
        try await DaemonFixture.with { fixture in
            try await done("add shop --url \(Self.url) --signature both --type consent.authorized", fixture)
            try await Changes.publish(1, in: fixture)
            let secret = String(try await done("secret shop", fixture).lines[0].dropFirst("whsec_".count))
            var texts = ""
            for line in [
                "endpoints list", "endpoints list --json", "endpoints show shop", "endpoints show shop --json",
                "endpoints pause shop --note x", "endpoints rotate shop --note x", "audit list --wide", "doctor",
                "deliveries list --status any", "deliveries show shop/1 --json", "changes show 1", "config",
                "endpoints seek shop --position 9 --note x", "endpoints test shop", "migrate status",
            ] {
                let run = try await siwad(
                    line.split(separator: " ").map(String.init),
                    environment: fixture.environment(Sealing.settings)
                )
                texts += run.output + run.errors
            }
            for table in ["endpoints", "endpoint_states", "endpoint_secrets", "deliveries", "operator_actions"] {
                let columns = table == "endpoints" ? "t.name, t.types" : "t"
                texts += try await fixture.texts("SELECT row(\(columns))::text FROM siwa.\(table) AS t").joined()
            }
            #expect(!texts.contains(secret) && !texts.contains("whsec_") && !texts.contains("whsk_"))
            #expect(!texts.contains("hidden-in-the-query"))
            #expect(!texts.contains(Sealing.key))
        }
    }

    @Test("siwad_reader sees the endpoints and deliveries, and neither reads a secret nor changes anything.")
    func reader() async throws {
        try await DaemonFixture.with { fixture in
            try await done("add shop --url \(Self.url) --type consent.authorized", fixture)
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
            }
            try await fixture.run("DROP ROLE \(name)")
            #expect(try await audit(fixture) == ["endpoints add: shop: why"])
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

/// The key that seals secrets in tests.
enum Sealing {
    static let key = String(repeating: "A", count: 43) + "="
    static let settings = ["SIWAD_SEALING_KEYS": "test:\(key)"]
}

enum Changes {
    /// Publishes sign-ins, one each of new people.
    static func publish(_ count: Int, in fixture: DaemonFixture) async throws {
        try await fixture.run(
            """
            SELECT siwa.record_sign_in('com.example.one', 'p' || gen_random_uuid()) FROM generate_series(1, \(count));
            """
        )
        try await fixture.run("SELECT siwa.publish_changes()")
    }
}
