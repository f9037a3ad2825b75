import AccountStore
import Glibc
import JOSE
import TestSupport
import Testing

@Suite("siwad changes", .timeLimit(.minutes(10)))
struct ChangesCommandTests {
    private func post(_ sub: String, _ fixture: DaemonFixture, _ url: String, _ type: String = "consent-revoked")
        async throws
    {
        let body = try fixture.body(fixture.event(type, sub: sub))
        #expect(try await Web.post(body, to: url).status == 200)
    }

    private func publish(_ fixture: DaemonFixture) async throws {
        try await fixture.run("SELECT siwa.publish_changes()")
    }

    private func subs(_ lines: [String]) -> [String?] {
        lines.map { try? JSONValue(parsing: Array($0.utf8))["data"]?["sub"]?.string }
    }

    /// Signs people in, and publishes that.
    private func signIn(_ subs: String..., in fixture: DaemonFixture, client: String = "com.example.one") async throws {
        for sub in subs { try await fixture.run("SELECT siwa.record_sign_in('\(client)', '\(sub)')") }
        try await publish(fixture)
    }

    private func run(_ arguments: [String], _ fixture: DaemonFixture) async throws -> CommandRun {
        try await siwad(["changes"] + arguments, environment: fixture.environment())
    }

    @Test("follow prints each change once as it is published, also after the database was away, and ends with 0.")
    func follow() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await post("earlier", fixture, addresses.notifications)
            try await eventually("publication") { try await fixture.texts("SELECT sub FROM siwa.changes").count == 1 }
            let follow = fixture.start(arguments: ["changes", "follow", "--json", "--from-start"])
            try await eventually("the earlier change") { follow.output.count == 1 }
            try await post("one", fixture, addresses.notifications)
            try await eventually("the next change") { follow.output.count == 2 }
            try await fixture.closeDatabase()
            try await eventually("the message about the loss") { follow.log.count == 1 }
            #expect(follow.log[0].hasPrefix("siwad: ") && follow.log[0].hasSuffix(": trying again"), "\(follow.log)")
            try await fixture.openDatabase()
            try await eventually("the daemon to store again") {
                let body = try fixture.body(fixture.event("consent-revoked", sub: "after", id: "after"))
                return try await Web.post(body, to: addresses.notifications).status == 200
            }
            try await eventually("the change after the loss") { follow.output.count == 3 }
            follow.send("INT")
            #expect(try await follow.end() == 0)
            #expect(subs(follow.output) == ["earlier", "one", "after"])
            #expect(follow.log.last == "siwad: connected again; no change was missed")
        }
    }

    @Test("follow goes on without a gap after PostgreSQL was restarted or killed, and events keep their ids.")
    func restart() async throws {
        try await PrivateCluster.withMigrated { cluster, fixture in
            let url = try await fixture.start().ready().notifications
            let follow = fixture.start(arguments: ["changes", "follow", "--json", "--from-start"])
            try await post("before", fixture, url)
            try await eventually("the first change") { follow.output.count == 1 }
            for sub in ["restarted", "killed"] {
                if sub == "killed" { try await cluster.kill() } else { await cluster.stop() }
                try await cluster.start()
                let body = try fixture.body(fixture.event("consent-revoked", sub: sub))
                try await eventually("the daemon to store again") {
                    try await Web.post(body, to: url).status == 200
                }
                try await eventually("the change after the loss") { subs(follow.output).last == sub }
            }
            follow.send("INT")
            #expect(try await follow.end() == 0)
            #expect(subs(follow.output) == ["before", "restarted", "killed"])
            let again = try await run(["follow", "--json", "--from-start", "--until-current"], fixture)
            #expect(again.lines.map(String.init) == follow.output)
        }
    }

    @Test("follow that reaches a standby tries again until the standby is promoted.")
    func promotion() async throws {
        try await PrivateCluster.withMigrated { cluster, fixture in
            try await signIn("before", in: fixture)
            try await cluster.withStandby { standby in
                try await DaemonFixture.with(standby.conninfo(database: "siwa")) { copy in
                    let follow = copy.start(arguments: ["changes", "follow", "--json", "--from-start"])
                    try await eventually("the message about the standby") { follow.log.count == 1 }
                    let advice = "promote it, or name the primary in SIWAD_DATABASE_URL; trying again"
                    #expect(follow.log[0].hasSuffix(": \(advice)"), "\(follow.log)")
                    let once = try await run(["follow", "--from-start", "--until-current"], copy)
                    #expect(once.status == 69 && once.errors.contains("SIWAD_DATABASE_URL"), "\(once)")
                    try await copy.run("SELECT pg_promote()")
                    try await eventually("the change from before") { follow.output.count == 1 }
                    try await signIn("after", in: copy)
                    try await eventually("the next change") { follow.output.count == 2 }
                    follow.send("INT")
                    #expect(try await follow.end() == 0)
                    #expect(subs(follow.output) == ["before", "after"])
                }
            }
        }
    }

    @Test("follow ends if its position is given to another change, as after a failover that lost changes.")
    func reassignment() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("a", "b", in: fixture)
            let follow = fixture.start(arguments: ["changes", "follow", "--json", "--from-start"])
            try await eventually("the changes") { follow.output.count == 2 }
            try await fixture.run(
                "UPDATE siwa.change_log SET published_at = published_at + interval '1 ms' WHERE position = 2"
            )
            #expect(try await follow.end() == 1)
            #expect(follow.log.contains { $0.contains("position 2 belongs to another change than before") })
        }
    }

    @Test("A change is printed within a fraction of a second, because the publisher's hint wakes the command.")
    func hint() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("earlier", in: fixture)
            let follow = fixture.start(arguments: ["changes", "follow", "--json", "--from-start"])
            try await eventually("the first change") { follow.output.count == 1 }
            var shortest = Duration.seconds(60)
            for number in 2...8 {
                let start = ContinuousClock.now
                try await signIn("\(number)", in: fixture)
                try await eventually("a change") { follow.output.count == number }
                shortest = min(shortest, .now - start)
            }
            #expect(shortest < .milliseconds(300))
        }
    }

    @Test("The options choose where follow starts and ends, and which changes it prints.")
    func options() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("a", "b", in: fixture)
            try await signIn("c", in: fixture, client: "com.example.two")
            func lines(_ arguments: String...) async throws -> [String?] {
                let run = try await run(["follow", "--json", "--until-current"] + arguments, fixture)
                #expect(run.status == 0, "\(run.errors)")
                return subs(run.lines.map(String.init))
            }
            #expect(try await lines("--from-start") == ["a", "b", "c"])
            #expect(try await lines("--after", "1") == ["b", "c"])
            #expect(try await lines("--since", "1h") == ["a", "b", "c"])
            #expect(try await lines("--from-start", "--limit", "2") == ["a", "b"])
            #expect(try await lines("--from-start", "--app", "com.example.two") == ["c"])
            #expect(try await lines("--from-start", "--sub", "b") == ["b"])
            #expect(
                try await lines("--from-start", "--type", "consent.authorized", "--type", "siwa.account.deleted").count
                    == 3
            )

            let none = try await run(
                ["follow", "--until-current", "--from-start", "--type", "account.deleted"],
                fixture
            )
            #expect(none.status == 4)
            let now = try await run(["follow", "--until-current", "--json"], fixture)
            #expect(now.status == 4 && now.output.isEmpty)
            let ahead = try await run(["follow", "--after", "4"], fixture)
            #expect(ahead.status == 1 && ahead.errors.contains("position 4 is ahead of the log, which ends with 3"))
            let behind = try await run(["follow", "--after", "4", "--until-current"], fixture)
            #expect(behind.status == 1 && behind.errors.contains("position 4 is ahead of the log"), "\(behind.errors)")
            for wrong in [
                ["--after", "1", "--from-start"], ["--after", "-1"], ["--limit", "0"], ["--type", "other"],
            ] {
                #expect(try await run(["follow"] + wrong, fixture).status == 64, "\(wrong)")
            }
        }
    }

    @Test("--team chooses the changes of one developer team, in list and follow.")
    func teams() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("a", in: fixture)
            try await signIn("b", in: fixture, client: "com.example.two")
            try await signIn("c", in: fixture, client: "com.example.other")
            let follow = ["follow", "--json", "--from-start", "--until-current", "--team"]
            let teams: [(String, [String?])] = [("AAAAAAAAAA", ["a", "b"]), ("BBBBBBBBBB", ["c"])]
            for (team, people) in teams {
                let followed = try await run(follow + [team], fixture)
                #expect(subs(followed.lines.map(String.init)) == people, "\(followed.errors)")
                let list = try await run(["list", "--json", "--team", team], fixture)
                #expect(list.lines.count == people.count, "\(list.errors)")
                #expect(list.lines.allSatisfy { $0.contains(#""team_id":"\#(team)""#) }, "\(list.output)")
            }
        }
    }

    @Test("A deletion that another app group of the team reported is found by --app.")
    func team() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            try await post("gone", fixture, addresses.notifications, "account-deleted")
            try await post("revoked", fixture, addresses.notifications)
            try await eventually("publication") { try await fixture.texts("SELECT sub FROM siwa.changes").count == 2 }
            let list = try await run(["list", "--app", "com.example.two", "--json"], fixture)
            #expect(list.status == 0 && list.lines.count == 1 && list.output.contains("siwa.account.deleted"))
            let other = try await run(["list", "--app", "com.example.other"], fixture)
            #expect(other.status == 4, "\(other.errors)")
        }
    }

    @Test("--app takes an app as tables abbreviate it, and one that is not registered is an error, also of follow.")
    func apps() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("a", in: fixture)
            try await signIn("b", in: fixture, client: "com.example.two")
            for command in [["list"], ["follow", "--from-start", "--until-current"]] {
                let one = try await run(command + ["--json", "--app", "…ple.two"], fixture)
                #expect(one.status == 0 && one.lines.count == 1 && one.output.contains("example.two"), "\(one.errors)")
                let idle = try await run(command + ["--app", "…ple.other"], fixture)
                #expect(idle.status == 4 && !idle.errors.contains("registered"), "\(idle.errors)")
            }
            for command in [["list"], ["follow"]] {
                let mistyped = try await run(command + ["--app", "com.example.tow"], fixture)
                #expect(mistyped.status == 4, "\(command)")
                #expect(mistyped.errors.contains("no app com.example.tow is registered"), "\(mistyped.errors)")
            }
            try await fixture.run("DELETE FROM siwa.clients WHERE app_id = 'com.example.two'")
            let removed = try await run(
                ["follow", "--json", "--from-start", "--until-current", "--app", "com.example.two"],
                fixture
            )
            #expect(removed.status == 0 && removed.lines.count == 1, "\(removed.errors)")
        }
    }

    @Test("In 80 columns, the list tells the types apart.")
    func narrow() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("person" + String(repeating: "0", count: 40), in: fixture)
            try await fixture.run(
                """
                INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time)
                SELECT account_id, 'com.example.one', facet, from_state, to_state, now()
                FROM siwa.accounts, (VALUES
                    ('email', 'deliverable', 'undeliverable'), ('email', 'undeliverable', 'deliverable'),
                    ('consent', 'authorized', 'revoked'), ('account', 'active', 'deleted')
                ) AS v (facet, from_state, to_state)
                """
            )
            try await publish(fixture)
            let list = try await siwadOnTerminal(["changes", "list"], columns: 80, environment: fixture.environment())
            #expect(list.lines.allSatisfy { $0.count <= 80 }, "\(list.output)")
            let ends = ["ding_disabled ", "ding_enabled ", "revoked ", "authorized ", "deleted "]
            for end in ends { #expect(list.lines.contains { $0.contains(end) }, "\(end) in \(list.output)") }
        }
    }

    @Test("list shows the latest first, show one with its event, and schema describes the events.")
    func reading() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("a", "b", in: fixture)
            let list = try await run(["list", "--limit", "1"], fixture)
            #expect(
                list.lines.count == 2 && list.lines[0].contains("POSITION")
                    && list.lines[1].contains("consent.authorized")
            )
            let json = try await run(["list", "--json"], fixture)
            #expect(json.lines[0].hasPrefix(#"{"position":2,"published_at":""#), "\(json.output)")
            let show = try await run(["show", "1"], fixture)
            #expect(show.status == 0 && show.output.contains("consent unknown → authorized"), "\(show.output)")
            let event = try await run(["show", "1", "--json"], fixture)
            let followed = try await run(["follow", "--json", "--from-start", "--limit", "1"], fixture)
            #expect(event.output == "\(followed.output.dropLast(2)),\"deliveries\":[]}\n" && !followed.output.isEmpty)
            let missing = try await run(["show", "3"], fixture)
            #expect(missing.status == 4 && missing.errors.contains("the last one is 2"))
            let schema = try await siwad(["changes", "schema"])
            #expect(
                try JSONValue(parsing: Array(schema.output.utf8))["$schema"]?.string?.hasSuffix("2020-12/schema")
                    == true
            )
        }
    }

    @Test(
        "--forward-to posts each event as the daemon would, and prints the response; the reference library accepts it.",
        .enabled(if: PythonProgram.isAvailable, PythonProgram.missing)
    )
    func forwarding() async throws {
        try await TemporaryDirectory.with { directory in
            let secret = try directory.write("secret", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\n")
            try await DaemonFixture.with { fixture in
                try await signIn("a", "b", in: fixture)
                let receiver = try await PythonReceiver(fixture, secrets: secret, refusals: 1)
                let arguments = ["follow", "--from-start", "--until-current", "--secret-file", secret, "--forward-to"]
                let forward = try await run(arguments + [receiver.url], fixture)
                #expect(forward.status == 0, "\(forward.errors)")
                #expect(forward.lines.count == 2)
                #expect(
                    forward.output.contains(
                        /1 +consent.authorized +500  [0-9]+ ms\n2 +consent.authorized +200  [0-9]+ ms/
                    )
                )
                // What the receiver prints arrives after its responses.
                try await eventually("the lines of the receiver") { receiver.count >= 2 }
                let messages = try receiver.messages
                #expect(messages.map(\.status) == [500, 200])
                #expect(messages.allSatisfy { $0.accepted == [0] && $0.signatures == ["v1"] })
                let events = try await run(["follow", "--json", "--from-start", "--until-current"], fixture).lines
                for (message, event) in zip(messages, events) {
                    #expect(event.hasPrefix(#"{"id":"\#(message.id)","published_at":""#))
                    #expect(event.hasSuffix(message.body.dropFirst()))
                }
                let refused = try await run(arguments + ["http://127.0.0.1:1/"], fixture)
                #expect(refused.status == 0 && refused.lines.count == 2)
                #expect(refused.lines[0].hasSuffix("connection refused"), "\(refused.output)")
            }
            for url in ["http://192.0.2.1/", "https://example.com/", "nothing"] {
                let run = try await siwad(["changes", "follow", "--secret-file", secret, "--forward-to", url])
                #expect(run.status == 64 && run.errors.contains("--forward-to"), "\(run.errors)")
            }
            #expect(try await siwad(["changes", "follow", "--secret-file", secret]).status == 64)
            let missing = ["changes", "follow", "--secret-file", "/nothing", "--forward-to", "http://127.0.0.1:1/"]
            try await DaemonFixture.with { fixture in
                let run = try await siwad(missing, environment: fixture.environment())
                #expect(run.status == 1 && run.errors.contains("/nothing"), "\(run.errors)")
            }
        }
    }

    @Test("A signal before the end of a follow that has one is no success.")
    func signalBeforeLimit() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("a", in: fixture)
            let follow = fixture.start(arguments: ["changes", "follow", "--json", "--from-start", "--limit", "2"])
            try await eventually("the first change") { follow.output.count == 1 }
            follow.send("TERM")
            #expect(try await follow.end() == 128 + SIGTERM)
        }
    }

    @Test(
        "One signal ends follow although its reader reads nothing.",
        arguments: [false, true]
    )
    func stuckReader(hasEnd: Bool) async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.run(
                "SELECT siwa.record_sign_in('com.example.one', 'person ' || n) FROM generate_series(1, 500) AS n"
            )
            try await publish(fixture)
            try await TemporaryDirectory.with { directory in
                let pipe = directory.file("pipe")
                #expect(mkfifo(pipe, 0o600) == 0)
                let descriptor = open(pipe, O_RDWR | O_NONBLOCK | O_CLOEXEC)
                defer { close(descriptor) }
                let script = "exec \"$@\" >\"\(pipe)\""
                let arguments = ["changes", "follow", "--json", "--from-start"] + (hasEnd ? ["--until-current"] : [])
                let follow = fixture.start(arguments: arguments, under: ["/bin/sh", "-c", script, "sh"])
                try await eventually("a full pipe") {
                    var waiting: Int32 = 0
                    return ioctl(descriptor, UInt(FIONREAD), &waiting) == 0 && waiting > 50_000
                }
                follow.send("TERM")
                #expect(try await follow.end(within: .seconds(15)) == (hasEnd ? 128 + SIGTERM : 0))
            }
        }
    }

    @Test("A closed pipe ends follow with 0, even if nothing is published any more.")
    func closedPipe() async throws {
        try await DaemonFixture.with { fixture in
            try await signIn("a", in: fixture)
            let script = #""$@" | head -n 1; echo "status ${PIPESTATUS[0]}""#
            let arguments = ["changes", "follow", "--json", "--from-start"]
            let follow = fixture.start(arguments: arguments, under: ["/bin/bash", "-c", script, "bash"])
            #expect(try await follow.end() == 0)
            #expect(subs(Array(follow.output.prefix(1))) == ["a"])
            #expect(follow.output.last == "status 0")
            #expect(follow.log.isEmpty, "\(follow.log)")
        }
    }
}
