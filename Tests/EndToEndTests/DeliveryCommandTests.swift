import AccountStore
import Glibc
import JOSE
import TestSupport
import Testing

@Suite("siwad deliveries", .timeLimit(.minutes(10)))
struct DeliveryCommandTests {
    /// Runs a test with an endpoint shop that has `count` dead deliveries, the first half refused, the others timed out.
    private func withDead<R>(_ count: Int, _ body: (DaemonFixture) async throws -> R) async throws -> R {
        try await DaemonFixture.with { fixture in
            for name in ["crm", "shop"] {
                let add = "endpoints add \(name) --url https://a.example --type consent.authorized --note why"
                let run = try await siwad(
                    add.split(separator: " ").map(String.init),
                    environment: fixture.environment(Sealing.settings)
                )
                #expect(run.status == 0, "\(run.errors)")
            }
            try await Changes.publish(count, in: fixture)
            try await fixture.run(
                """
                UPDATE siwa.deliveries AS d
                SET status = 'dead', next_attempt_at = NULL, attempts = 10, first_failed_at = now(),
                    reason = CASE WHEN position <= \(count) / 2 THEN 'refused' ELSE 'timed-out' END,
                    http_status = CASE WHEN position <= \(count) / 2 THEN 403 END
                FROM siwa.endpoints AS e WHERE e.endpoint_id = d.endpoint_id AND e.name = 'shop';
                INSERT INTO siwa.delivery_attempts
                    (endpoint_id, position, attempt, attempted_at, duration, reason, http_status, detail)
                SELECT endpoint_id, position, 1, now(), '12 ms', reason, http_status, 'the receiver answered 403'
                FROM siwa.deliveries WHERE status = 'dead' AND http_status IS NOT NULL
                """
            )
            return try await body(fixture)
        }
    }

    private func run(_ line: String, _ fixture: DaemonFixture, note: String? = nil) async throws -> CommandRun {
        let words = line.split(separator: " ").map(String.init) + (note.map { ["--note", $0] } ?? [])
        return try await siwad(["deliveries"] + words, environment: fixture.environment())
    }

    /// How many deliveries of shop have each status.
    private func statuses(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts(
            """
            SELECT d.status || ' ' || count(*) FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id)
            WHERE e.name = 'shop' GROUP BY d.status ORDER BY 1
            """
        )
    }

    private func audit(_ fixture: DaemonFixture) async throws -> [String] {
        try await fixture.texts(
            """
            SELECT concat_ws(': ', action, target, affected) FROM siwa.operator_actions
            WHERE action LIKE 'deliveries %' ORDER BY action_id
            """
        )
    }

    @Test("list, show and stats explain the dead deliveries, and filter them.")
    func reading() async throws {
        try await withDead(4) { fixture in
            let list = try await run("list", fixture)
            #expect(list.lines.count == 5 && list.lines[1].hasPrefix("shop/4"), "\(list.output)")
            #expect(try await run("list --json --reason refused", fixture).lines.count == 2)
            #expect(try await run("list crm/1 shop/1 --json", fixture).lines.count == 2)
            #expect(try await run("list --endpoint crm", fixture).status == 4)
            #expect(try await run("list --endpoint crm --status pending --json", fixture).lines.count == 4)
            #expect(try await run("list --type account.deleted", fixture).status == 4)
            for app in ["com.example.one", "…ple.one", "com.example.on…"] {
                #expect(try await run("list --app \(app) --json", fixture).lines.count == 4, "\(app)")
                #expect(try await run("retry --app \(app) --dry-run --json", fixture).lines.count == 2, "\(app)")
            }
            for line in ["list", "stats", "retry --dry-run"] {
                let mistyped = try await run("\(line) --app com.example.on", fixture)
                #expect(mistyped.status == 4, "\(line)")
                #expect(
                    mistyped.errors.contains("no app com.example.on is registered: pass one of"),
                    "\(mistyped.errors)"
                )
            }
            let idle = try await run("list --app …ple.two", fixture)
            #expect(idle.errors == "siwad: no dead deliveries match\n", "\(idle.errors)")
            #expect(try await run("list --until 1h", fixture).status == 4)
            let sub = try await fixture.texts("SELECT sub FROM siwa.changes WHERE position = 2")[0]
            #expect(try await run("list --sub \(sub) --json", fixture).lines.count == 1)

            let show = try await run("show shop/1", fixture)
            #expect(show.status == 0 && show.output.contains("dead: refused"), "\(show.output)")
            #expect(show.output.contains("siwad deliveries retry shop/1 --note"))
            #expect(show.output.contains("the receiver answered 403"))
            let stats = try await run("stats --by reason --json --endpoint shop", fixture)
            #expect(
                stats.lines.count == 2 && stats.output.contains(#""reason":"refused","pending":0,"retry":0,"dead":2"#)
            )
            let missing = try await run("show shop/9", fixture)
            #expect(missing.status == 4 && missing.errors.contains("siwad changes show 9"), "\(missing.errors)")
            for wrong in ["show shop", "show shop/0", "show /1", "list --status lost", "list --reason unknown"] {
                #expect(try await run(wrong, fixture).status == 64, "\(wrong)")
            }
            #expect(try await run("list --endpoint none", fixture).status == 4)
            let narrow = try await siwadOnTerminal(
                ["deliveries", "list"],
                columns: 80,
                environment: fixture.environment()
            )
            #expect(narrow.lines.count == 5 && narrow.lines.allSatisfy { $0.count <= 80 }, "\(narrow.output)")
            let none = try await run("list --endpoint crm", fixture)
            #expect(none.errors == "siwad: no dead deliveries match\n", "\(none.errors)")
            let waiting = try await run("retry crm/1", fixture, note: "x")
            let advice = "siwad deliveries list crm/1 shows"
            #expect(waiting.status == 4 && waiting.errors.contains(advice), "\(waiting.errors)")
        }
    }

    @Test("A dry run shows what would change, and changes nothing.")
    func dryRun() async throws {
        try await withDead(4) { fixture in
            let rows = "SELECT d.xmin || d::text FROM siwa.deliveries AS d ORDER BY endpoint_id, position"
            let before = try await fixture.texts(rows)
            for verb in ["retry", "discard"] {
                let dry = try await run("\(verb) --endpoint shop --dry-run", fixture)
                #expect(dry.status == 0 && dry.errors.contains("nothing was changed"), "\(dry.errors)")
                #expect(dry.lines.count == 3 && dry.lines[1].contains("refused"), "\(dry.output)")
            }
            #expect(try await statuses(fixture) == ["dead 4"])
            #expect(try await fixture.texts(rows) == before)
            #expect(try await audit(fixture).isEmpty)
        }
    }

    @Test("retry makes deliveries due with a new schedule, discard gives them up; both are audited in batches.")
    func deciding() async throws {
        try await withDead(1_100) { fixture in
            let retry = try await run("retry --endpoint shop --reason refused", fixture, note: "repaired")
            #expect(retry.status == 0 && retry.output == "550 retried\n", "\(retry.output)\(retry.errors)")
            #expect(try await statuses(fixture) == ["dead 550", "pending 550"])
            let target = "--endpoint shop --status dead --reason refused"
            #expect(
                try await audit(fixture) == ["deliveries retry: \(target): 500", "deliveries retry: \(target): 50"]
            )
            let fresh = """
                SELECT DISTINCT concat_ws(' ', attempts, reason, http_status, next_attempt_at <= now())
                FROM siwa.deliveries JOIN siwa.endpoints AS e USING (endpoint_id)
                WHERE e.name = 'shop' AND deliveries.status = 'pending'
                """
            #expect(try await fixture.texts(fresh) == ["0 t"])
            #expect(try await fixture.texts("SELECT count(*)::text FROM siwa.delivery_attempts") == ["550"])

            let discard = try await run("discard shop/1100 shop/1", fixture, note: "by hand")
            #expect(discard.status == 2 && discard.output == "1 discarded\n", "\(discard.errors)")
            #expect(discard.errors.contains("1 of 2 named can't be discarded"))
            let undo = try await run("retry shop/1100 --status discarded --json", fixture, note: "after all")
            #expect(undo.output == "{\"retried\":1,\"left_alone\":0}\n")
            let fast = try await run("retry shop/1099 --rate 1e19", fixture, note: "x")
            #expect(fast.status == 0 && fast.output == "1 retried\n", "\(fast.errors)")
            let nothing = try await run("retry --endpoint crm", fixture, note: "x")
            #expect(nothing.status == 4 && nothing.errors.contains("nothing was retried"), "\(nothing.errors)")
            let all = try await run("discard --all --status any", fixture, note: "x")
            #expect(all.status == 0 && all.output == "2200 discarded\n", "\(all.errors)")
        }
    }

    @Test("The entry of each batch of a long list of ids names only the deliveries that the batch changed.")
    func manyIDs() async throws {
        try await withDead(600) { fixture in
            try await fixture.run(
                "UPDATE siwa.deliveries SET status = 'pending', next_attempt_at = now() WHERE position = 7"
            )
            let ids = (1...600).map { "shop/\($0)" }.joined(separator: " ")
            let retry = try await run("retry \(ids)", fixture, note: "repaired")
            #expect(retry.status == 2 && retry.output == "599 retried\n", "\(retry.errors)")
            func target(_ positions: [Int]) -> String {
                positions.map { "--id shop/\($0) " }.joined() + "--status dead"
            }
            let batches = [(1...501).filter { $0 != 7 }, Array(502...600)]
            #expect(
                try await audit(fixture) == batches.map { "deliveries retry: \(target($0)): \($0.count)" }
            )
        }
    }

    @Test("After a retry to an endpoint that is not enabled, a note names the command that delivers now.")
    func waiting() async throws {
        try await withDead(6) { fixture in
            try await fixture.run(
                """
                UPDATE siwa.endpoint_states
                SET failing_since = now(), open_until = now() + interval '1 min', probe_delay = interval '5 min'
                """
            )
            let note = "siwad endpoints resume shop --note '…' delivers now\n"
            let dry = try await run("retry shop/1 --dry-run", fixture)
            #expect(!dry.errors.contains("resume"), "\(dry.errors)")
            let open = try await run("retry shop/1", fixture, note: "repaired")
            #expect(open.status == 0 && open.output == "1 retried\n", "\(open.output)\(open.errors)")
            #expect(open.errors == "shop is open: \(note)")
            let json = try await run("retry shop/2 --json", fixture, note: "repaired")
            #expect(json.output == "{\"retried\":1,\"left_alone\":0}\n" && json.errors == "shop is open: \(note)")
            let discarded = try await run("discard shop/3", fixture, note: "by hand")
            #expect(discarded.status == 0 && discarded.errors.isEmpty, "\(discarded.errors)")
            try await fixture.endpoints("resume shop")
            let enabled = try await run("retry shop/4", fixture, note: "repaired")
            #expect(enabled.status == 0 && enabled.errors.isEmpty, "\(enabled.errors)")
            try await fixture.endpoints("pause shop")
            let paused = try await run("retry shop/5", fixture, note: "repaired")
            #expect(paused.status == 0 && paused.errors == "shop is paused: \(note)", "\(paused.errors)")
        }
    }

    @Test("The title of a delivery that has ended has no reason of an earlier failure.")
    func ended() async throws {
        try await withDead(2) { fixture in
            #expect(try await run("discard shop/1", fixture, note: "by hand").status == 0)
            try await fixture.run(
                "UPDATE siwa.deliveries SET status = 'delivered', resolved_at = now() WHERE status = 'dead'"
            )
            for (id, status) in [("shop/1", "discarded"), ("shop/2", "delivered")] {
                let show = try await run("show \(id)", fixture)
                #expect(show.lines.first == "delivery \(id), \(status)", "\(show.output)\(show.errors)")
            }
        }
    }

    @Test("A delivery whose attempt is under way is not retried; discarded, its outcome no longer counts.")
    func underWay() async throws {
        try await withDead(2) { fixture in
            let claim = """
                UPDATE siwa.deliveries AS d
                SET status = 'retry', next_attempt_at = now(), claim = gen_random_uuid(), claimed_until = now() + '1 min'
                FROM siwa.endpoints AS e WHERE e.endpoint_id = d.endpoint_id AND e.name = 'shop' AND position = 1
                """
            try await fixture.run(claim)
            let retry = try await run("retry --endpoint shop --status any", fixture, note: "x")
            #expect(retry.status == 2 && retry.output == "1 retried\n", "\(retry.errors)")
            let discard = try await run("discard shop/1 --status retry", fixture, note: "x")
            #expect(discard.status == 0, "\(discard.errors)")
            #expect(try await fixture.texts("SELECT count(claim)::text FROM siwa.deliveries") == ["0"])
        }
    }

    @Test("Commands that select nothing, lack a note, or name a status that can't be changed are usage errors.")
    func usage() async throws {
        try await withDead(1) { fixture in
            for wrong in [
                "retry", "discard", "retry --status retry", "retry --all --endpoint shop", "retry --all --rate 0",
                "retry --all --status pending", "discard --all --status delivered", "discard --all --status discarded",
            ] {
                #expect(try await run(wrong, fixture, note: "x").status == 64, "\(wrong)")
            }
            let unexplained = try await run("retry --all", fixture)
            #expect(unexplained.status == 64 && unexplained.errors.contains("--note"))
            #expect(try await statuses(fixture) == ["dead 1"])
        }
    }

    @Test("A run that is killed halfway can be run again, and the audit counts each delivery once.")
    func killed() async throws {
        try await withDead(1_300) { fixture in
            let retry = fixture.start(
                arguments: ["deliveries", "retry", "--endpoint", "shop", "--rate", "500", "--note", "why"]
            )
            try await eventually("the first batch") { try await statuses(fixture).contains("pending 500") }
            await retry.kill()
            #expect(try await statuses(fixture) != ["pending 1300"])
            #expect(try await run("retry --endpoint shop", fixture, note: "again").status == 0)
            #expect(try await statuses(fixture) == ["pending 1300"])
            let affected = "SELECT sum(affected)::text FROM siwa.operator_actions WHERE action = 'deliveries retry'"
            #expect(try await fixture.texts(affected) == ["1300"])
        }
    }

    @Test("Ctrl-C ends a run between two batches, and says how far it came.")
    func interrupted() async throws {
        try await withDead(1_300) { fixture in
            let retry = fixture.start(
                arguments: ["deliveries", "retry", "--endpoint", "shop", "--rate", "500", "--note", "why"],
                under: ["/usr/bin/env", "--default-signal=INT"]
            )
            try await eventually("the first batch") { try await statuses(fixture).contains("pending 500") }
            retry.send("INT")
            #expect(try await retry.end(within: .seconds(8)) == 128 + SIGINT)
            #expect(retry.log.last == "500 retried so far; the same command goes on with what is left", "\(retry.log)")
        }
    }

    @Test("Two operators at the same time decide about each delivery once.")
    func together() async throws {
        try await withDead(3_000) { fixture in
            async let one = run("retry --endpoint shop", fixture, note: "one")
            async let other = run("discard --endpoint shop", fixture, note: "other")
            let statuses = try await [one, other].map(\.status)
            #expect(statuses.allSatisfy { [0, 2, 4].contains($0) }, "\(statuses)")
            let counts = try await fixture.texts(
                """
                SELECT
                    (SELECT sum(affected) FROM siwa.operator_actions WHERE action LIKE 'deliveries %')
                    || ' ' || count(*) FILTER (WHERE d.status = 'dead')
                FROM siwa.deliveries AS d
                """
            )
            #expect(counts == ["3000 0"])
            // Each decision is one that the audit counts for its own operator.
            let decided = try await fixture.texts(
                """
                SELECT (
                    SELECT coalesce(sum(affected), 0) FROM siwa.operator_actions
                    WHERE action = 'deliveries ' || v.verb AND note = v.note
                ) || ' ' || (
                    SELECT count(*) FROM siwa.deliveries JOIN siwa.endpoints AS e USING (endpoint_id)
                    WHERE e.name = 'shop' AND deliveries.status = v.status
                )
                FROM (VALUES ('retry', 'one', 'pending'), ('discard', 'other', 'discarded')) AS v (verb, note, status)
                """
            )
            for counts in decided.map({ $0.split(separator: " ") }) { #expect(counts[0] == counts[1], "\(decided)") }
            let others = """
                SELECT DISTINCT concat_ws(' ', d.status, d.attempts)
                FROM siwa.deliveries AS d JOIN siwa.endpoints AS e USING (endpoint_id) WHERE e.name = 'crm'
                """
            #expect(try await fixture.texts(others) == ["pending 0"])
        }
    }

    @Test("An output that can't be written is an error, and the decision is carried out all the same.")
    func fullOutput() async throws {
        try await withDead(2) { fixture in
            let run = try await siwad(
                ["deliveries", "retry", "--endpoint", "shop", "--note", "why"],
                redirectedBy: "> /dev/full",
                environment: fixture.environment()
            )
            #expect(run.status == 1 && run.errors.contains("standard output"), "\(run.errors)")
            #expect(try await statuses(fixture) == ["pending 2"])
        }
    }

    @Test("siwad changes show says what became of a change at each endpoint.")
    func fates() async throws {
        try await withDead(1) { fixture in
            let add = "endpoints add late --url https://a.example --type consent.authorized --note x"
            let other = "endpoints add idp --url https://a.example --note x"
            for line in [add, other] {
                let words = line.split(separator: " ").map(String.init)
                #expect(try await siwad(words, environment: fixture.environment(Sealing.settings)).status == 0)
            }
            func fates() async throws -> [Substring] {
                let show = try await siwad(["changes", "show", "1"], environment: fixture.environment())
                return show.lines.filter { $0.hasPrefix("endpoint") }.map { $0.dropFirst(12) }
            }
            #expect(
                try await fates() == [
                    "crm: pending", "idp: filtered out", "late: none, as the endpoint was added later",
                    "shop: dead after 10 attempts: timed-out",
                ]
            )
            let json = try await siwad(["changes", "show", "1", "--json"], environment: fixture.environment())
            let deliveries = try #require(try JSONValue(parsing: Array(json.output.utf8))["deliveries"]?.array)
            #expect(
                deliveries.map { "\($0["endpoint"]?.string ?? "") \($0["status"]?.string ?? "")" } == [
                    "crm pending", "idp filtered-out", "late added-later", "shop dead",
                ]
            )
            #expect(deliveries[3]["attempts"]?.integer == 10 && deliveries[3]["reason"]?.string == "timed-out")
            #expect(deliveries[1]["attempts"] == .null)
            try await fixture.run(
                """
                UPDATE siwa.deliveries AS d
                SET status = 'delivered', next_attempt_at = NULL, resolved_at = '2026-01-02 03:04:05Z', attempts = 1,
                    http_status = 204
                FROM siwa.endpoints AS e WHERE e.endpoint_id = d.endpoint_id AND e.name = 'shop'
                """
            )
            #expect(try await fates().last == "shop: delivered (HTTP 204) with 1 attempt, 2026-01-02 03:04:05 UTC")
            _ = try await run("discard crm/1 --status pending --operator kim", fixture, note: "not needed")
            #expect(try await fates().first == "crm: discarded by kim: not needed")
            try await fixture.run(
                """
                DELETE FROM siwa.deliveries;
                UPDATE siwa.endpoints SET created_at = created_at - interval '31 days';
                UPDATE siwa.change_log SET published_at = published_at - interval '31 days'
                """
            )
            #expect(try await fates().last == "shop: settled, and deleted after SIWAD_DELIVERY_RETENTION")
        }
    }

    @Test("siwad changes show says of a change that an endpoint's filter did not match then that it was never sent.")
    func wantedLater() async throws {
        try await withDead(1) { fixture in
            for line in [
                "add idp --url https://a.example --type account.deleted --note x",
                "edit idp --type consent.authorized --note x",
            ] {
                if line.hasPrefix("edit") { try await Changes.publish(1, in: fixture) }
                let words = ["endpoints"] + line.split(separator: " ").map(String.init)
                let run = try await siwad(words, environment: fixture.environment(Sealing.settings))
                #expect(run.status == 0, "\(run.errors)")
            }
            let show = try await siwad(["changes", "show", "2"], environment: fixture.environment())
            let sentence = "idp: none, as its filter did not match when the change was published"
            #expect(show.lines.contains { $0.hasSuffix(sentence) }, "\(show.output)")
            let json = try await siwad(["changes", "show", "2", "--json"], environment: fixture.environment())
            let deliveries = try #require(try JSONValue(parsing: Array(json.output.utf8))["deliveries"]?.array)
            #expect(deliveries.map { $0["status"]?.string } == ["pending", "not-wanted-then", "pending"])
            var schemas = try JSONSchemas()
            #expect(schemas.problems(json.lines[0], "changes-show") == [])
        }
    }
}
