import StoreTestSupport
import TestSupport
import Testing

@Suite("Mistakes on the command line, and the commands that messages name", .timeLimit(.minutes(10)))
struct OperatorMistakeTests {
    @Test(
        "One line names the mistake and the right word.",
        arguments: [
            (["dead-leters"], ["'dead-leters'", "did you mean \"dead-letters\"?"]),
            (["dead-leters", "list", "--reason", "expired"], ["did you mean \"dead-letters\"?"]),
            (["notifications", "lst", "--limit", "1"], ["did you mean \"list\"?"]),
            (["migrate", "staus"], ["did you mean \"status\"?"]), (["tial"], ["did you mean \"tail\"?"]),
            (["quit"], ["Unknown command 'quit'", "'siwad --help'"]),
            (["tail", "--typ", "x"], ["Did you mean '--type'?"]),
            (["tail", "--since", "yesteday"], ["1h", "yesterday", "2026-01-02T03:04:05Z"]),
            (["dead-letters", "list", "--since", "1 hour"], ["--since", "1h", "yesterday"]),
            (["sessions", "list", "--since", "-1h"], ["'-1h'", "--since", "without a minus sign, such as 1h"]),
            (["changes", "list", "--since", "-1h"], ["'-1h'", "--since", "without a minus sign, such as 1h"]),
            (["changes", "list", "--until", "-1h"], ["'-1h'", "--until", "without a minus sign, such as 1h"]),
            (["endpoints", "pause", "shop", "--note", "--operator", "kim"], ["--note needs a text"]),
            (["endpoints", "pause", "shop", "--operator", "--note", "x"], ["--operator needs a text"]),
            (["simulate", "sign-in", "--nonce", "-Nx_h", "--age", "-1"], ["--age must be from 0"]),
            (["simulate", "sign-in", "--real-user-status", "-1"], ["--real-user-status must be from 0 to 2"]),
            (["verify", "x", "--at", "noon"], ["--at", "1h", "yesterday"]),
            (["dead-letters", "stats", "--reason", "expird"], ["following: unknown-audience, unknown-event-type,"]),
            (["dead-letters", "show", "seventeen"], ["'seventeen'", "<number>"]),
            (["dead-letters", "show"], ["name letters by their numbers"]),
            (["dead-letters", "replay"], ["select letters by number", "--all", "--note must say why"]),
            (["dead-letters", "reopen"], ["select letters by number", "--note must say why"]),
            (["sessions", "end"], ["name sessions", "--note must say why"]),
            (["clients", "remove"], ["name client ids", "--note must say why"]),
            (["notifications", "show"], ["name notifications by their jti"]),
            (
                ["notifications", "list", "--type", "consent_revoked"],
                ["--type", "consent-revoked, ", "siwad dead-letters list"]
            ),
            (["tail", "--type", "deleted"], ["--type", "account-deleted"]),
            (["tail", "--type", "email-…"], ["can mean email-disabled, email-enabled"]),
            (["audit", "list", "--action", "session end"], ["--action", "sessions end, "]),
            (["simulate", "token"], ["'--key <file>'", "'--type <type>'", "'--app <app-id>'"]),
        ] as [([String], [String])]
    )
    func usage(arguments: [String], words: [String]) async throws {
        let result = try await siwad(arguments)
        #expect(result.status == 64, "\(result.errors)")
        #expect(result.output.isEmpty && result.errorLines.count == 1, "\(result.output)\(result.errors)")
        for word in words { #expect(result.errors.contains(word), "“\(word)” is not in: \(result.errors)") }
    }

    @Test(
        "One line names every missing setting.",
        arguments: [["serve"], ["dead-letters", "replay", "--all", "--dry-run"]]
    )
    func missingSettings(command: [String]) async throws {
        let result = try await siwad(command, environment: ["SIWAD_LOG_FORMAT": "json"])
        #expect(result.status == 78)
        #expect(result.errorLines.count == 1)
        #expect(result.errors.contains("set SIWAD_DATABASE_URL") && result.errors.contains("set SIWAD_APPS"))
    }

    @Test("Every form of a time is accepted.", arguments: ["1h", "30m", "2d", "1h30m", "today", "yesterday", "now"])
    func times(text: String) async throws {
        try await DaemonFixture.with { fixture in
            for command in [["notifications", "list"], ["sessions", "list"], ["dead-letters", "stats"]] {
                let result = try await siwad(command + ["--since", text], environment: fixture.environment())
                #expect(result.status == 4, "\(result.errors)")
            }
        }
    }

    /// Two letters for an unknown app, and a notification.
    private func record(_ fixture: DaemonFixture) async throws {
        try await fixture.withDaemon { _, addresses in
            for event in [
                fixture.event(app: "com.example.new"), fixture.event(app: "com.example.new"), fixture.event(id: "-n"),
            ] {
                let response = try await Web.post(fixture.body(event), to: addresses.notifications)
                #expect(response.status == 200)
            }
        }
    }

    @Test("Ids are arguments or options, several at a time; the missing ones are counted.")
    func ids() async throws {
        try await DaemonFixture.with { fixture in
            try await record(fixture)
            func run(_ arguments: String...) async throws -> CommandRun {
                try await siwad(arguments, environment: fixture.environment())
            }
            let ids = try await fixture.texts("SELECT id::text FROM siwa.dead_letters ORDER BY id")
            #expect(ids.count == 2)
            #expect(try await run("dead-letters", "show", ids[0], "--id", ids[1], ids[0], "--json").lines.count == 2)
            let partly = try await run("dead-letters", "show", ids[0], "99")
            #expect(partly.status == 2)
            #expect(
                partly.errors
                    == "siwad: 1 of 2 named is no dead letter: siwad dead-letters list \(ids[0]) 99 shows their status\n"
            )
            #expect(try await run("dead-letters", "show", "98", "99").status == 4)
            #expect(try await run("dead-letters", "list", ids[0], ids[1], "--json").lines.count == 2)
            for verb in ["discard", "reopen"] {
                let result = try await run("dead-letters", verb, ids[0], ids[1], "--note", "x", "--operator", "kim")
                #expect(result.output == "2 \(verb)ed\n", "\(result.errors)")
            }
            let replay = try await run("dead-letters", "replay", ids[0], "--id", ids[1], "--dry-run", "--json")
            #expect(replay.lines.count == 2, "\(replay.errors)")
            #expect(try await run("notifications", "show", "--id", "-n", "--json").lines.count == 1)
            #expect(try await run("notifications", "show", "--json", "--", "-n", "-n").lines.count == 1)
            #expect(try await run("notifications", "show", "--id", "-n", "gone").status == 2)
            #expect(try await run("notifications", "show", "gone").status == 4)
            #expect(try await run("notifications", "list", "--app", "com.exmaple.one").status == 4)
        }
    }

    @Test("A command that a message names runs as printed: with the file and the database that were given.")
    func printedCommands() async throws {
        try await DaemonFixture.with { fixture in
            try await record(fixture)
            let directory = try TemporaryDirectory()
            let settings = "database_url: \(fixture.conninfo)\napps: AAAAAAAAAA/com.example.one\n"
            let file = try directory.write("my siwad.yaml", settings)
            let letter = try await fixture.texts("SELECT min(id)::text FROM siwa.dead_letters")[0]
            let ways = [
                (["--config", file], " --config '\(file)'"),
                (["--database-url", fixture.conninfo], " --database-url \"\(fixture.conninfo)\""),
                // The server asks for no password, so that the command can do without it.
                (["--database-url", fixture.conninfo + " password=geheim"], " --database-url \"\(fixture.conninfo)\""),
            ]
            for (given, repeated) in ways {
                let cases = [
                    (["accounts", "show", "none"], "accounts list", 4),
                    (["dead-letters", "discard", letter, "99", "--dry-run"], "dead-letters list \(letter) 99", 2),
                ]
                for (command, next, expected) in cases {
                    let result = try await siwad(command + given)
                    #expect(result.status == expected, "\(result.errors)")
                    #expect(result.errors.contains(": siwad \(next)\(repeated) shows "), "\(result.errors)")
                    #expect(!result.errors.contains("geheim"))
                    let status = try await run(next + repeated).status
                    #expect(status == 0 || status == 4)
                }
                let page = try await siwad(["dead-letters", "show", letter] + given)
                let line = page.lines.first { $0.hasPrefix("    siwad dead-letters ") } ?? ""
                #expect(line.hasSuffix(" --note '…'\(repeated)"), "\(page.output)\(page.errors)")
                let replay = String(line.dropFirst(4 + 6)) + " --apps AAAAAAAAAA/com.example.one --dry-run"
                #expect(try await run(replay).status == 0)
            }
        }
    }

    /// Runs a command as a shell does.
    private func run(_ words: String) async throws -> (status: Int, output: String) {
        let result = try await ChildProcess.run(["/bin/sh", "-c", "\(Binary.path) \(words); echo status $?"])
        let status = result.output.split(separator: " ").last.flatMap { Int($0.filter(\.isNumber)) } ?? -1
        return (status, result.output)
    }

    @Test("The error about a schema that is not migrated names the command with the given configuration.")
    func notMigrated() async throws {
        try await TestDatabase.with { database in
            let directory = try TemporaryDirectory()
            let file = try directory.write("siwad.yaml", "database_url: \(database.conninfo)\n")
            let result = try await siwad(["accounts", "list", "--config", file])
            #expect(result.status == 78)
            #expect(result.errors.contains(": run siwad migrate --config \(file) as a role that may create the schema"))
            #expect(try await run("migrate --config \(file)").status == 0)
        }
    }
}
