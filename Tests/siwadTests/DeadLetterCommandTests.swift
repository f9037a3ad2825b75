import AccountStore
import AppleTokens
import Basics
import JOSE
import Postgres
import StoreTestSupport
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("dead-letters")
struct DeadLetterCommandTests {
    private static let apps = "AAAAAAAAAA/com.example.one"

    /// The letter of a notification that could not be processed; the signature of its token is a placeholder.
    ///
    /// - Parameter id: the `jti` claim in JSON; nil: a valid one.
    private static func letter(
        _ index: Int,
        _ reason: DeadLetterReason,
        app: String,
        id: String? = nil
    ) -> ReceivedDeadLetter {
        let received = WallTime(seconds: 1_790_000_000) + .seconds(60 * index)
        let event = #"{\"type\":\"consent-revoked\",\"sub\":\"person\#(index)\",\"event_time\":1789999990000}"#
        let jti = #""jti\#(index)""#
        let claims =
            #"{"iss":"https://appleid.apple.com","aud":"\#(app)","exp":1790086400,"iat":1790000000,"#
            + #""jti":\#(id ?? jti),"events":"\#(event)"}"#
        let parts = [#"{"kid":"gone","alg":"RS256"}"#, claims].map { Base64URL.encode(Array($0.utf8)) }
        let token = Array((parts.joined(separator: ".") + ".AAAA").utf8)
        return ReceivedDeadLetter(
            DeadLetter(
                reason: reason,
                detail: "The claim “aud” is not one of the configured apps.",
                notificationID: "jti\(index)",
                audience: app,
                subject: "person\(index)",
                eventType: "consent-revoked",
                verifiedKeyID: "gone",
                token: token
            ),
            tokenDigest: SHA256.digest(token.span),
            receivedAt: received
        )
    }

    /// A database with four letters; three of them are for a configured app.
    private func with(_ body: ([String: String], TestDatabase) async throws -> Void) async throws {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                for index in 1...4 {
                    let app = index == 4 ? "com.example.new" : "com.example.one"
                    _ = try DeadLetters.record([Self.letter(index, .unknownAudience, app: app)], in: session)
                }
            }
            await connection.close()
            try await body(["SIWAD_DATABASE_URL": database.conninfo, "SIWAD_APPS": Self.apps], database)
        }
    }

    private func audit(_ database: TestDatabase) async throws -> [String] {
        let connection = try await PostgresConnection.connect(database.settings)
        let audit = try await connection.withSession { session throws(PostgresError) in
            let rows = try session.execute(
                Statement(
                    once: "SELECT concat_ws('|', operator, action, target, note, affected) FROM siwa.operator_actions"
                        + " ORDER BY action_id"
                )
            )
            var audit: [String] = []
            for row in 0..<rows.count { audit.append(try rows.string(row, 0)) }
            return audit
        }
        await connection.close()
        return audit
    }

    @Test("Replay, discard and reopen refuse to run without a filter or a note.")
    func usage() async {
        for verb in ["replay", "discard", "reopen"] {
            let bare = await siwad("dead-letters", verb, "--note", "why")
            #expect(bare.status == .usage)
            #expect(bare.errors.contains("or use --all"))
            #expect(await siwad("dead-letters", verb, "--all").status == .usage)
            #expect(await siwad("dead-letters", verb, "--all", "--note", " ").status == .usage)
            #expect(await siwad("dead-letters", verb, "--all", "--id", "1", "--note", "x").status == .usage)
            #expect(await siwad("dead-letters", verb, "--reason", "nonsense", "--note", "x").status == .usage)
            let help = await siwad("dead-letters", verb, "--help")
            #expect(help.status == .done)
            #expect(help.output.contains("siwad dead-letters \(verb)"))
        }
        for rate in ["1e-300", "0.000999", "0"] {
            for verb in ["replay", "discard"] {
                let slow = await siwad("dead-letters", verb, "--all", "--note", "x", "--rate", rate)
                #expect(slow.status == .usage)
                #expect(slow.errors.hasPrefix("siwad: --rate must be at least 0.001: "))
            }
        }
        #expect(await siwad("dead-letters", "list", "--status", "nonsense").status == .usage)
    }

    @Test("Lists, counts and pages fit 80 columns.")
    func looking() async throws {
        try await with { environment, _ in
            let style = OutputStyle(width: 80, usesColor: false)
            let list = await siwad("dead-letters", "list", environment: environment, style: style)
            #expect(list.lines.count == 5)
            #expect(list.lines[1].contains("com.example.new"))
            let stats = await siwad("dead-letters", "stats", "--by", "app", environment: environment, style: style)
            #expect(stats.lines.count == 3)
            let page = await siwad("dead-letters", "show", "4", environment: environment, style: style)
            #expect(page.output.contains("TEAMID/com.example.new"))
            #expect(page.output.contains("✓ signature  valid at receipt, as recorded"))
            #expect(page.output.contains("✗ audience"))
            let narrow = (list.lines + stats.lines + page.lines).filter { !$0.contains("siwad dead-letters") }
            #expect(narrow.allSatisfy { VisibleText.width($0) <= 80 })
            let json = await siwad("dead-letters", "list", "--id", "4", "--json", environment: environment)
            #expect(json.output.hasPrefix(#"{"id":4,"received_at":"2026-09-21T"#))
            #expect(await siwad("dead-letters", "show", "99", environment: environment).status == .nothingMatched)
            #expect(
                await siwad("dead-letters", "list", "--id", "99", environment: environment).status == .nothingMatched
            )
        }
    }

    @Test("The exit code of a replay is 0 for all, 2 for some, 1 for none, 4 for no match.")
    func replay() async throws {
        try await with { environment, database in
            let dry = await siwad("dead-letters", "replay", "--all", "--dry-run", environment: environment)
            #expect(dry.status == .done)
            #expect(dry.lines.last?.contains("unknown-audience") == true)
            #expect(dry.errors == "dry run: nothing was changed\n")
            let untouched = try await audit(database)
            #expect(untouched.isEmpty)

            let replay = ["dead-letters", "replay", "--note", "why", "--operator", "kim", "--all"]
            let some = await siwadCommand(replay, environment: environment)
            #expect(some.status == .partlyFailed)
            #expect(some.lines.last == "3 replayed, 1 stay open")
            #expect(some.errors == "siwad: 1 of 4 stay open: siwad dead-letters show 4 says why\n")
            let none = await siwadCommand(replay + ["--json"], environment: environment)
            #expect(none.status == .failed)
            #expect(none.output.hasPrefix(#"{"matched":1,"replayed":0,"dead":1,"passed_over":0,"#))
            let apps = ["--apps", Self.apps + ",BBBBBBBBBB/com.example.new"]
            let rest = await siwadCommand(replay + apps, environment: environment)
            #expect(rest.status == .done)
            #expect(rest.lines.last == "1 replayed")
            #expect(await siwadCommand(replay, environment: environment).status == .nothingMatched)
            let audited = try await audit(database)
            #expect(audited.map { $0.split(separator: "|").last } == ["3", "0", "1"])
            let page = await siwad("dead-letters", "show", "4", environment: environment)
            #expect(page.output.contains("Nothing is left to do"))
            #expect(page.output.contains("by kim (database role postgres): applied"))
        }
    }

    @Test("A database role that may not read a token gets this as the reason, and not that the token was erased.")
    func hiddenToken() async throws {
        try await with { environment, database in
            let name = "reader_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                for (index, reason) in [(5, DeadLetterReason.notYetValid), (6, .keysUnavailable), (7, .expired)] {
                    _ = try DeadLetters.record([Self.letter(index, reason, app: "com.example.one")], in: session)
                }
                try session.execute(script: "CREATE ROLE \(name) LOGIN IN ROLE siwad_reader")
            }
            let reader = environment.merging(["SIWAD_DATABASE_URL": "\(database.conninfo) user=\(name)"]) { $1 }
            let page = await siwad("dead-letters", "show", "4", "5", "6", "7", environment: reader)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "DROP ROLE \(name)")
            }
            await connection.close()
            #expect(page.status == .done, "\(page.errors)")
            #expect(page.output.contains("TEAMID/com.example.new"))
            #expect(page.output.contains("dead-letters replay --id 7 --accept-expired --note '…'"), "\(page.output)")
            let hidden = page.lines.filter { $0.hasSuffix(": look at it as a member of siwad_daemon.") }
            #expect(hidden.count == 2, "\(page.output)")
            #expect(page.lines.count { $0 == "  the token is hidden from this database role" } == 4, "\(page.output)")
            #expect(!page.output.contains("erased") && !page.output.contains("discard --id"), "\(page.output)")
            let erased = await siwad("dead-letters", "show", "5", environment: environment)
            #expect(!erased.output.contains("hidden") && !erased.output.contains("siwad_daemon"), "\(erased.output)")
        }
    }

    @Test("A row of a replay's table names the cause only if all its letters share it.")
    func causes() async throws {
        try await with { environment, database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                for (index, id) in [(5, "7"), (6, "8"), (7, "\"\"")] {
                    let letter = Self.letter(index, .unknownAudience, app: "com.example.one", id: id)
                    _ = try DeadLetters.record([letter], in: session)
                }
            }
            await connection.close()
            func replay(_ ids: [String], _ more: String...) async -> CommandResult {
                let named = ids.flatMap { ["--id", $0] }
                return await siwadCommand(["dead-letters", "replay"] + named + more, environment: environment)
            }
            let alike = await replay(["5", "6"], "--dry-run")
            #expect(alike.lines.last?.hasSuffix("  “jti” is not a string.") == true, "\(alike.output)")
            let various = await replay(["5", "6", "7"], "--dry-run")
            #expect(various.lines.last?.hasSuffix("  various: --json shows each") == true, "\(various.output)")
            let each = await replay(["5", "6", "7"], "--dry-run", "--json")
            #expect(each.output.contains("“jti” is not a string."))
            #expect(each.output.contains("“jti” is empty or longer than 256 bytes."))

            let table = await replay(["5", "6", "7"], "--note", "why")
            #expect(table.output.contains("  various: dead-letters show explains each\n"), "\(table.output)")
            let json = await replay(["5", "6", "7"], "--note", "why", "--json")
            #expect(json.output.contains(#""became":"dead","#))
            #expect(json.output.contains(#""detail":null,"count":3"#), "\(json.output)")
            let cause = await replay(["5", "6"], "--note", "why", "--json")
            #expect(cause.output.contains(#""detail":"“jti” is not a string.","count":2"#), "\(cause.output)")
        }
    }

    @Test("A person is found by the beginning of a sub that only letters have, unless several people have it.")
    func beginnings() async throws {
        try await with { environment, database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(
                    script: """
                        UPDATE siwa.dead_letters SET sub = (ARRAY[
                            '000768.1111aaaa.0001', '000768.1111bbbb.0002', '001999.cccc.0003', '001999.cccc.0003'
                        ])[id::integer];
                        INSERT INTO siwa.accounts (team_id, sub) VALUES
                            ('AAAAAAAAAA', '000768.2222dddd.0004'), ('AAAAAAAAAA', '001999.cccc.0003');
                        """
                )
            }
            await connection.close()
            func run(_ words: String...) async -> CommandResult {
                await siwadCommand(["dead-letters"] + words, environment: environment)
            }
            for beginning in ["000768.1111a", "000768.1111aaaa…", "000768.1111aaaa.0001"] {
                let list = await run("list", "--sub", beginning, "--json")
                #expect(list.lines.count == 1 && list.output.hasPrefix(#"{"id":1,"#), "\(beginning): \(list)")
                #expect(await run("stats", "--sub", beginning).status == .done)
            }
            #expect(await run("list", "--sub", "0019", "--json").lines.count == 2)
            let letters = await run("list", "--sub", "000768.1111")
            #expect(letters.status == .usage)
            #expect(letters.errors.contains("2 subs begin with this: write more of it"), "\(letters.errors)")
            let all = await run("list", "--sub", "000768.")
            #expect(all.errors.contains("3 subs begin with this"), "accounts count too: \(all.errors)")
            for verb in ["replay", "discard"] {
                let short = await run(verb, "--dry-run", "--sub", "001999.")
                #expect(short.status == .nothingMatched, "7 characters")
                let cause = "or only one that begins with 8 or more characters of it"
                #expect(short.errors.contains(cause), "\(short.errors)")
                #expect(await run(verb, "--dry-run", "--sub", "001999.c").status == .done)
                #expect(await run(verb, "--dry-run", "--sub", "000768.1111").status == .usage)
                #expect(await run(verb, "--dry-run", "--sub", "000768.1111b").status == .done)
            }
            let audited = ["--sub", "000768.1111b", "--note", "why", "--operator", "kim"]
            for (verb, output) in [("discard", "1 discarded\n"), ("reopen", "1 reopened\n")] {
                let result = await siwadCommand(["dead-letters", verb] + audited, environment: environment)
                #expect(result.output == output, "\(result.errors)")
            }
            let actions = try await audit(database)
            #expect(actions.first == "kim|dead-letters discard|--sub 000768.1111bbbb.0002|why|1")
        }
    }

    @Test("Letters are discarded and reopened, and the audit records operator and note.")
    func decisions() async throws {
        try await with { environment, database in
            let filter = ["--app", "com.example.one"]
            let dry = await siwadCommand(["dead-letters", "discard", "--dry-run"] + filter, environment: environment)
            #expect(dry.lines.last?.contains("discarded") == true)
            let audited = filter + ["--note", "app sold", "--operator", "kim"]
            let discarded = await siwadCommand(["dead-letters", "discard"] + audited, environment: environment)
            #expect(discarded == CommandResult(status: .done, output: "3 discarded\n", errors: ""))
            let again = await siwadCommand(["dead-letters", "discard"] + audited, environment: environment)
            #expect(again.status == .nothingMatched)
            let reopened = await siwadCommand(["dead-letters", "reopen"] + audited, environment: environment)
            #expect(reopened.output == "3 reopened\n")
            let actions = try await audit(database)
            #expect(
                actions == [
                    "kim|dead-letters discard|--app com.example.one|app sold|3",
                    "kim|dead-letters reopen|--app com.example.one|app sold|3",
                ]
            )
        }
    }

    @Test("--rate makes a discard commit smaller batches, each with its entry in the audit, and wait between them.")
    func limitedDiscard() async throws {
        try await with { environment, database in
            let discard = ["dead-letters", "discard", "--all", "--rate", "2"]
            let dry = await siwadCommand(discard + ["--dry-run", "--json"], environment: environment)
            #expect(dry.output == #"{"reason":"unknown-audience","count":4,"would_become":"discarded"}"# + "\n")
            let start = ContinuousClock.now
            let result = await siwadCommand(discard + ["--note", "why", "--operator", "kim"], environment: environment)
            #expect(result == CommandResult(status: .done, output: "4 discarded\n", errors: ""))
            #expect(ContinuousClock.now - start >= .seconds(1))
            let entry = "kim|dead-letters discard|--all|why|2"
            let actions = try await audit(database)
            #expect(actions == [entry, entry])
        }
    }

    @Test(
        "Named letters that do not exist make the command fail partly.",
        arguments: [["discard", "--dry-run"], ["discard", "--note", "why"], ["replay", "--dry-run"]]
    )
    func missing(command: [String]) async throws {
        try await with { environment, _ in
            let arguments = ["dead-letters"] + command + ["--id", "1", "--id", "999999", "--id", "1"]
            let result = await siwadCommand(arguments, environment: environment)
            #expect(result.status == .partlyFailed)
            #expect(
                result.errors.hasSuffix(
                    "siwad: 1 of 2 named is no open letter that matches: siwad dead-letters list 1 999999 shows their status\n"
                )
            )
            #expect(!result.output.isEmpty)
        }
    }

    @Test("A replay reports letters that stay open and named letters that do not match in one line.")
    func missingAndDead() async throws {
        try await with { environment, _ in
            let replay = ["dead-letters", "replay", "4", "999", "--note", "why"]
            func missing(_ count: Int, _ names: String) -> String {
                "1 of \(count) named is no open letter that matches: siwad dead-letters list \(names) shows their status\n"
            }
            let none = await siwadCommand(replay, environment: environment)
            #expect(none.status == .failed)
            let dead = "stay open: siwad dead-letters show 4 says why"
            #expect(none.errors == "siwad: 1 of 1 \(dead); " + missing(2, "4 999"))
            let some = await siwadCommand(replay + ["1"], environment: environment)
            #expect(some.status == .partlyFailed)
            #expect(some.errors == "siwad: 1 of 2 \(dead); " + missing(3, "4 999 1"))
        }
    }

    @Test("Letters that can't be reopened and named letters that do not match are reported in one line.")
    func missingAndRefused() async throws {
        try await with { environment, database in
            let discard = ["dead-letters", "discard", "1", "2", "--note", "why"]
            #expect(await siwadCommand(discard, environment: environment).status == .done)
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                let again = Self.letter(1, .unknownAudience, app: "com.example.one")
                _ = try DeadLetters.record([again], in: session)
            }
            await connection.close()
            let reopen = ["dead-letters", "reopen", "1", "2", "999", "--note", "why"]
            let result = await siwadCommand(reopen, environment: environment)
            #expect(result.status == .partlyFailed)
            #expect(result.output == "1 reopened\n")
            #expect(
                result.errors
                    == "siwad: 1 stay discarded, as the token is open in another letter, or was erased with the person's account; "
                    + "1 of 3 named is no discarded letter that matches: siwad dead-letters list 1 2 999 "
                    + "shows their status\n"
            )
        }
    }

    @Test("Letters that another session has locked are left alone, and the command fails.")
    func locked() async throws {
        try await with { environment, database in
            func run(_ words: String...) async -> CommandResult {
                await siwadCommand(["dead-letters"] + words + ["--note", "why"], environment: environment)
            }
            #expect(await run("discard", "3").status == .done)
            try await database.withOpenTransaction { session throws(PostgresError) in
                try session.execute(script: "SELECT FROM siwa.dead_letters WHERE id IN (1, 3) FOR UPDATE")
            } _: {
                let left =
                    "siwad: 1 were left alone, as another session changed or locked them: run the command again\n"
                let discard = await run("discard", "1")
                #expect(discard == CommandResult(status: .failed, output: "0 discarded\n", errors: left))
                let reopen = await run("reopen", "3")
                #expect(reopen == CommandResult(status: .failed, output: "0 reopened\n", errors: left))
                let replay = await run("replay", "1", "--json")
                #expect(replay.status == .failed)
                #expect(replay.output.hasPrefix(#"{"matched":1,"replayed":0,"dead":0,"passed_over":1,"#))
                let skipped = "1 were skipped, as another operator changed them or is changing them"
                #expect(replay.errors == "siwad: \(skipped): run the command again\n")
                let some = await run("discard", "1", "2", "--json")
                #expect(some.status == .partlyFailed)
                #expect(some.output == #"{"discarded":1,"refused":0,"left_alone":1}"# + "\n")
            }
            #expect(await run("discard", "1").status == .done)
        }
    }

    @Test("--limit bounds a replay and a dry run, the oldest letters first.")
    func limitedReplay() async throws {
        try await with { environment, database in
            let replay = ["dead-letters", "replay", "--all", "--limit", "2"]
            let dry = await siwadCommand(replay + ["--dry-run"], environment: environment)
            #expect(dry.lines.count == 6, "\(dry.output)")
            let fates = await siwadCommand(replay + ["--dry-run", "--json"], environment: environment)
            #expect(fates.lines.count == 2)
            let audited = replay + ["--note", "why", "--operator", "kim"]
            let first = await siwadCommand(audited + ["--json"], environment: environment)
            #expect(first.status == .done)
            #expect(first.output.hasPrefix(#"{"matched":2,"replayed":2,"dead":0,"#))
            let rest = await siwadCommand(audited, environment: environment)
            #expect(rest.lines.last == "1 replayed, 1 stay open")
            let actions = try await audit(database)
            #expect(actions.first == "kim|dead-letters replay|--all --limit 2|why|2")
            for limit in ["0", "many"] {
                let wrong = ["dead-letters", "replay", "--all", "--dry-run", "--limit", limit]
                #expect(await siwadCommand(wrong).status == .usage)
            }
            #expect(await siwad("dead-letters", "replay", "--limit", "2", "--dry-run").status == .usage)
        }
    }
}
