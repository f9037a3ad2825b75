import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("Looking up notifications and sessions")
struct LookupCommandTests {
    private static let start = WallTime(seconds: 1_790_000_000)

    /// Two people with sessions in two apps and notifications from two sources.
    private func withTraffic(_ body: ([String: String], PostgresConnection) async throws -> Void) async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                let start = Self.start
                try Notifications.ensurePartitions(from: start, through: start, in: session)
                for (index, client) in ["com.example.one", "com.example.two", "com.example.one"].enumerated() {
                    let sub = Subject(index < 2 ? "p" : "q")
                    let time = start + .seconds(index)
                    _ = try Applications.recordSignIn(
                        client: ClientID(client),
                        subject: sub,
                        signedInAt: time,
                        in: session
                    )
                    try Applications.openSession(
                        client: ClientID(client),
                        subject: sub,
                        session: "s\(index)",
                        createdAt: time,
                        in: session
                    )
                }
                _ = try Notifications.record(
                    [.sample("consent-revoked", sub: "p", at: start + .seconds(60), id: "-n1")],
                    source: .endpoint,
                    in: session
                )
                _ = try Notifications.record(
                    [.sample("email-disabled", sub: "q", at: start + .seconds(90), id: "n2")],
                    source: .replay,
                    in: session
                )
            }
            try await body(["SIWAD_DATABASE_URL": database.conninfo, "USER": "kim"], connection)
            await connection.close()
        }
    }

    private func found(_ arguments: [String], _ key: String, _ environment: [String: String]) async -> [String] {
        let result = await siwadCommand(arguments + ["--json"], environment: environment)
        return result.lines.compactMap { line in
            line.split(separator: "\"\(key)\":\"").last?.split(separator: "\"").first.map(String.init)
        }
    }

    @Test(
        "Each filter finds its notifications.",
        arguments: [
            ([], ["n2", "-n1"]), (["--sub", "p"], ["-n1"]), (["--jti", "-n1"], ["-n1"]),
            (["--source", "replay"], ["n2"]),
            (["--type", "email-disabled"], ["n2"]), (["--type", "email-dis…"], ["n2"]),
            (["--type", "account-delete"], []),
            (["--app", "com.example.two"], []),
            (["--outcome", "applied", "--source", "endpoint"], ["-n1"]), (["--since", "2026-09-21T14:14:50Z"], ["n2"]),
            (["--until", "2026-09-21T14:14:50Z"], ["-n1"]), (["--limit", "1"], ["n2"]),
            (["--since", "2026-09-21T14:14:50"], ["n2"]), (["--since", "2026-09-21 14:14:50"], ["n2"]),
            (["--until", "2026-09-21 14:14"], []), (["--until", "2026-09-21 16:14:50+02:00"], ["-n1"]),
        ] as [([String], [String])]
    )
    func notifications(_ filter: [String], _ expected: [String]) async throws {
        try await withTraffic { environment, _ in
            #expect(await found(["notifications", "list"] + filter, "jti", environment) == expected)
        }
    }

    @Test("On a terminal, a note says which part of a list the limit shows.")
    func part() async throws {
        try await withTraffic { environment, _ in
            let cases = [
                (["accounts", "history"], "latest", "change"), (["accounts", "list"], "first", "account"),
                (["sessions", "list"], "first", "session"), (["notifications", "list"], "first", "notification"),
            ]
            for (command, part, noun) in cases {
                let result = await siwadCommand(
                    command + ["--limit", "1"],
                    environment: environment,
                    style: OutputStyle(width: 80, usesColor: false)
                )
                #expect(result.errors == "the \(part) 1 \(noun); --limit shows more\n")
            }
        }
    }

    @Test(
        "The note about the limit needs only standard error to be a terminal.",
        arguments: [[], ["--json"]] as [[String]]
    )
    func partInPipe(more: [String]) async throws {
        try await withTraffic { environment, _ in
            let command = ["notifications", "list", "--limit", "1"] + more
            let result = await siwadCommand(
                command,
                environment: environment,
                errorStyle: OutputStyle(width: 80, usesColor: false)
            )
            #expect(result.errors == "the first 1 notification; --limit shows more\n")
            let quiet = await siwadCommand(command, environment: environment)
            #expect(quiet == CommandResult(status: .done, output: result.output, errors: ""))
        }
    }

    @Test("A list of notifications omits the tokens; a notification's page shows its token.")
    func tokens() async throws {
        try await withTraffic { environment, _ in
            let list = await siwad("notifications", "list", "--json", environment: environment)
            #expect(list.lines.count == 2)
            #expect(!list.output.contains("\"jws\""))
            let show = await siwad("notifications", "show", "n2", "--json", environment: environment)
            #expect(show.output.contains(#","jws":""#))
        }
    }

    @Test(
        "Each filter finds its sessions.",
        arguments: [
            ([], ["s2", "s1", "s0"]), (["--live"], ["s2", "s1"]), (["--ended"], ["s0"]),
            (["--sub", "p"], ["s1", "s0"]),
            (["--reason", "consent-revoked"], ["s0"]), (["--reason", "expired"], []),
            (["--app", "com.example.two"], ["s1"]), (["--since", "2026-09-21T14:13:21Z"], ["s2", "s1"]),
            (["--until", "2026-09-21T14:13:21Z"], ["s0"]),
        ] as [([String], [String])]
    )
    func sessions(_ filter: [String], _ expected: [String]) async throws {
        try await withTraffic { environment, _ in
            #expect(await found(["sessions", "list"] + filter, "session_id", environment) == expected)
        }
    }

    @Test("Unknown words are usage errors.")
    func usage() async {
        for arguments in [
            ["notifications", "list", "--source", "mail"], ["sessions", "list", "--reason", "boredom"],
            ["sessions", "list", "--live", "--ended"], ["sessions", "end", "--note", "everybody"],
            ["sessions", "end", "--sub", "p"], ["accounts", "show", "p", "--limit", "0"],
        ] {
            #expect(await siwadCommand(arguments).status == .usage, "\(arguments)")
        }
    }

    @Test(
        "The error about an unreadable time names the accepted forms.",
        arguments: ["yesteday", "1 h", "2026-13-01", "14:00", "2026-01-02 03", "2026-01-02Z", ""]
    )
    func times(text: String) async {
        let result = await siwad("notifications", "list", "--since", text)
        #expect(result.status == .usage)
        #expect(result.errors.contains("write 2026-01-02, 2026-01-02 03:04 or 2026-01-02T03:04:05Z, in UTC"))
    }

    @Test(
        "A date without hyphens is refused, and not taken for seconds since 1970.",
        arguments: ["2026", "20261123", "+20261123", "202611231504"]
    )
    func digits(text: String) async {
        let result = await siwad("dead-letters", "discard", "--since", text, "--note", "why")
        #expect(result.status == .usage)
        #expect(result.errors.contains("write a date with hyphens, such as 2026-11-23"), "\(result.errors)")
    }

    @Test("Seconds and milliseconds since 1970 are times.", arguments: ["1790000000", "1790000000000"])
    func seconds(text: String) throws {
        #expect(try WallTime(argument: text) == Self.start)
    }

    @Test("A dry run of sessions end lists the sessions and changes nothing.")
    func rehearsal() async throws {
        try await withTraffic { environment, connection in
            let arguments = ["sessions", "end", "--sub", "p"]
            let rehearsed = await siwadCommand(arguments + ["--dry-run"], environment: environment)
            #expect(rehearsed.status == .done)
            #expect(rehearsed.output == "s1\n")
            #expect(rehearsed.errors == "dry run: 1 session would end, nothing was changed\n")
            #expect(await found(["sessions", "list", "--live"], "session_id", environment) == ["s2", "s1"])
            let audit = try await connection.withSession { session throws(PostgresError) in
                try session.execute(Statement(once: "SELECT FROM siwa.operator_actions")).count
            }
            #expect(audit == 0)
            let ended = await siwadCommand(arguments + ["--note", "asked"], environment: environment)
            #expect(ended.output == rehearsed.output)
        }
    }

    @Test("Named sessions that are not live make the command fail partly.")
    func partly() async throws {
        try await withTraffic { environment, _ in
            let result = await siwad("sessions", "end", "s0", "s1", "s2", "--note", "stolen", environment: environment)
            #expect(result.status == .partlyFailed)
            #expect(result.output == "s1\ns2\n")
            #expect(result.errors.contains("1 of 3 named is not a live session"))
        }
    }

    @Test("Sessions and actions are named as arguments and by --id; missing ones make the command fail partly.")
    func named() async throws {
        try await withTraffic { environment, _ in
            func run(_ arguments: String...) async -> CommandResult {
                await siwadCommand(arguments, environment: environment)
            }
            let ended = await run("sessions", "end", "s1", "--id", "s2", "--id", "s1", "--note", "stolen")
            #expect(ended == CommandResult(status: .done, output: "s1\ns2\n", errors: "2 ended\n"))
            let sessions = await run("sessions", "show", "s2", "--id", "s0")
            #expect(sessions.status == .done)
            #expect(sessions.lines.filter { $0.hasPrefix("session ") } == ["session s2", "session s0"])
            let actions = await run("audit", "show", "2", "--id", "1", "2")
            #expect(actions.status == .done)
            let titles = actions.lines.filter { $0.hasPrefix("action ") }
            #expect(titles == ["action 2: sessions end", "action 1: sessions end"])

            let someSessions = await run("sessions", "show", "--id", "s0", "none", "--json")
            #expect(someSessions.status == .partlyFailed)
            #expect(someSessions.lines.count == 1)
            #expect(
                someSessions.errors == "siwad: 1 of 2 named were not found (none): siwad sessions list shows some\n"
            )
            let someActions = await run("audit", "show", "1", "99", "--json")
            #expect(someActions.status == .partlyFailed)
            #expect(someActions.lines.count == 1)
            #expect(someActions.errors == "siwad: 1 of 2 named were not found (99): siwad audit list shows some\n")

            let noSession = await run("sessions", "show", "none", "--id", "nothing")
            #expect(noSession.status == .nothingMatched)
            #expect(noSession.errors == "siwad: no session has these ids: siwad sessions list shows some\n")
            let noAction = await run("audit", "show", "98", "99")
            #expect(noAction.status == .nothingMatched)
            #expect(noAction.errors == "siwad: no action has these numbers: siwad audit list shows some\n")
            #expect(await run("sessions", "show").status == .usage)
            #expect(await run("audit", "show").status == .usage)
        }
    }

    @Test("Every action that the audit has is a command, and the help of audit list names it.")
    func actions() async {
        let help = await siwad("audit", "list", "--help")
        let text = help.output.split(whereSeparator: \.isWhitespace).joined(separator: " ")
        for action in OperatorAction.commands {
            #expect(text.contains(action), "\(action)")
            let command = await siwadCommand(action.split(separator: " ").map(String.init) + ["--help"])
            #expect(command.output.contains("USAGE: siwad \(action)"), "\(action)")
        }
    }

    @Test("A person's page explains the session that ended last, even if the page does not list it.")
    func lastEnd() async throws {
        try await withTraffic { environment, connection in
            try await connection.withSession { session throws(PostgresError) in
                let (client, sub) = (ClientID("com.example.one"), Subject("r"))
                _ = try Applications.recordSignIn(client: client, subject: sub, signedInAt: Self.start, in: session)
                for index in 0..<11 {
                    _ = try Applications.openSession(
                        client: client,
                        subject: sub,
                        session: "r\(index)",
                        createdAt: Self.start + .seconds(index),
                        in: session
                    )
                }
                for index in 1..<11 { _ = try Applications.endSession("r\(index)", in: session) }
            }
            let ended = await siwad("sessions", "end", "r0", "--note", "stolen", environment: environment)
            #expect(ended.status == .done)
            let page = await siwad("accounts", "show", "r", environment: environment)
            try #require(page.lines.count > 1, "\(page.errors)")
            #expect(page.lines[1].contains("com.example.one: no session is live; the last one ended on "))
            #expect(page.lines[1].contains(" UTC, when the operator kim ended it."), "\(page.lines[1])")
            #expect(page.lines.contains("SESSIONS: 0 live of 11"))
            #expect(!page.lines.contains { $0.hasPrefix("  r0 ") })
        }
    }

    @Test("A session that had expired before a revocation is said to have expired.")
    func expiredBeforeRevocation() async throws {
        try await withTraffic { environment, connection in
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    script: """
                        SELECT siwa.record_sign_in('com.example.one', 'r', signed_in_at => to_timestamp(1790000000));
                        SELECT siwa.open_session(
                            'com.example.one', 'r', 'r0', to_timestamp(1790000000), to_timestamp(1790000010)
                        );
                        """
                )
                _ = try Notifications.record(
                    [.sample("consent-revoked", sub: "r", at: Self.start + .seconds(60), id: "n3")],
                    source: .endpoint,
                    in: session
                )
                try session.execute(
                    script: """
                        SELECT siwa.record_sign_in('com.example.one', 'r', signed_in_at => to_timestamp(1790000100))
                        """
                )
            }
            let page = await siwad("accounts", "show", "r", environment: environment)
            try #require(page.lines.count > 1, "\(page.errors)")
            #expect(page.lines[1].contains("ended on 2026-09-21 14:13:30 UTC, when it expired."), "\(page.lines[1])")
        }
    }

    @Test("A person's page shows the notification that signed the person out, and the open dead letters.")
    func page() async throws {
        try await withTraffic { environment, connection in
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    script: """
                        INSERT INTO siwa.dead_letters (
                            received_at, last_received_at, reason, detail, body, token_digest, sub, aud, verified_kid,
                            verified_at
                        )
                        SELECT now(), now(), 'expired', '', '', sha256(aud::bytea), 'p', aud, 'k', now()
                        FROM unnest('{com.example.one,com.example.other}'::text[]) AS aud
                        """
                )
            }
            let page = await siwad("accounts", "show", "p", environment: environment)
            #expect(page.status == .done, "\(page.errors)")
            #expect(
                page.lines[1].contains(
                    "com.example.one: signed out, because consent was revoked on 2026-09-21 14:14:20"
                )
            )
            #expect(page.lines[1].contains("reported by notification -n1."))
            #expect(page.lines[2].contains("com.example.two: signed in, 1 live session."))
            // The other letter is for an app of another team, where the same sub is another person.
            #expect(page.lines.suffix(3).first == "OPEN DEAD LETTERS")
            #expect(page.lines.last?.contains("com.example.one") == true)
            let letters = await siwad("dead-letters", "list", "--sub", "p", environment: environment)
            #expect(letters.lines.count == 3)
        }
    }
}
