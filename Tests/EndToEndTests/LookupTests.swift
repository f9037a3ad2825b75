import JOSE
import Testing

@Suite("Finding people, sessions, notifications and operators' actions", .timeLimit(.minutes(5)))
struct LookupTests {
    private static let shared = "000768.6166f031167141e695698239959f59"
    private static let kim = shared + "1a.1521"
    private static let lee = shared + "1b.1522"
    private static let ash = "001999.aaaabbbbccccddddeeeeffff00001111.0002"
    private static let phone = "5f0c1d2e-0000-4000-8000-00000000000"
    private static let jti = "4jH5Tn0aSyGv1cbXqRkPuQ"

    /// Three people with addresses. Kim has two sessions, of which an operator ended one, and a notification.
    private func withPeople(_ body: (DaemonFixture, [String: String]) async throws -> Void) async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.run(
                """
                SELECT siwa.record_sign_in('com.example.one', '\(Self.kim)', 'kim@privaterelay.appleid.com', true);
                SELECT siwa.record_sign_in('com.example.one', '\(Self.lee)', 'lee@example.com', false);
                SELECT siwa.record_sign_in('com.example.two', '\(Self.ash)', 'lee@example.com', false);
                SELECT siwa.open_session('com.example.one', '\(Self.kim)', '\(Self.phone)' || i) FROM generate_series(1, 2) AS i;
                INSERT INTO siwa.notifications (
                    jti, issued_at, received_at, event_time, sessions_ended, team_id, app_id, sub, event_type, outcome,
                    source, verified_kid
                ) VALUES (
                    '\(Self.jti)', now(), now(), now(), 0, 'AAAAAAAAAA', 'com.example.one', '\(Self.kim)',
                    'email-enabled', 'unchanged', 'endpoint', 'key'
                );
                """
            )
            let environment = fixture.environment(["LOGNAME": "sam"])
            let ended = try await siwad(
                ["sessions", "end", Self.phone + "1", "--note", "phone stolen"],
                environment: environment
            )
            #expect(ended.status == 0, "\(ended.errors)")
            try await body(fixture, environment)
        }
    }

    /// The member of the object in each line.
    private func members(_ name: String, _ run: CommandRun) throws -> [String] {
        try run.lines.map { try JSONValue(parsing: Array($0.utf8))[name]?.string ?? "" }
    }

    @Test("A person is found by sub, unique beginning, address and session id, also as a table cuts them.")
    func people() async throws {
        try await withPeople { _, environment in
            let names = [
                (Self.kim, [Self.kim]), (Self.shared + "1a", [Self.kim]), (Self.shared + "1a.1…", [Self.kim]),
                ("kim@privaterelay.appleid.com", [Self.kim]), ("KIM@PRIVATERELAY.APPLEID.COM", [Self.kim]),
                ("lee@example.com", [Self.lee, Self.ash]), (Self.phone + "2", [Self.kim]), ("0019", [Self.ash]),
            ]
            for (name, subs) in names {
                for command in ["show", "list", "history"] {
                    let run = try await siwad(["accounts", command, name, "--json"], environment: environment)
                    let isKnown = command != "history" || run.status == 4
                    #expect(run.status == 0 || isKnown, "\(command) \(name): \(run.errors)")
                    guard command != "history" else { continue }
                    #expect(try Set(members("sub", run)) == Set(subs), "\(command) \(name)")
                }
            }
        }
    }

    @Test("An id that ends in an ellipsis itself is found in full.")
    func ellipsis() async throws {
        try await withPeople { fixture, environment in
            try await fixture.run(
                "SELECT siwa.open_session('com.example.one', '\(Self.kim)', id) FROM unnest(ARRAY['ends-in…', 'ends-in-this']) AS id"
            )
            let end = try await siwad(["sessions", "end", "ends-in…", "--note", "x"], environment: environment)
            #expect(end.status == 0, "\(end.errors)")
            let live = "SELECT session_id FROM siwa.live_sessions WHERE session_id LIKE 'ends%'"
            #expect(try await fixture.texts(live) == ["ends-in-this"])
        }
    }

    @Test("An app and an event type are found as a table abbreviates them; several apps are listed.")
    func abbreviations() async throws {
        try await withPeople { fixture, environment in
            let found = [
                (["accounts", "list", "--app", "….two"], [Self.ash]),
                (["sessions", "list", "--app", "…mple.one"], [Self.kim, Self.kim]),
                (["notifications", "list", "--app", "….one", "--type", "email-e…"], [Self.kim]),
            ]
            for (arguments, subs) in found {
                let run = try await siwad(arguments + ["--json"], environment: environment)
                #expect(try members("sub", run) == subs, "\(arguments): \(run.errors)")
            }
            let several = try await siwad(["accounts", "list", "--app", "com.…"], environment: environment)
            #expect(several.status == 64)
            #expect(several.errors.contains("com.example.one") && several.errors.contains("com.example.two"))
        }
    }

    @Test("A name that finds no person or several is one line with the cause, the candidates and the next step.")
    func mistakes() async throws {
        try await withPeople { fixture, environment in
            try await fixture.run(
                "SELECT siwa.record_sign_in('com.example.one', E'0777\\x1b[31m' || i) FROM generate_series(1, 150) AS i"
            )
            let mistakes: [([String], Int32, String)] = [
                (["accounts", "show", "none"], 4, "no person has this sub"),
                (["accounts", "show", ""], 4, "no person has this sub"),
                (
                    ["accounts", "list", Self.shared], 64,
                    "2 subs begin with this: write more of it, or one of these in full"
                ),
                (["accounts", "show", "000768%"], 4, "no person has this sub"),
                (["accounts", "show", "0777"], 64, "at least 100 subs begin with this"),
                (["accounts", "show", "no@body@example.com"], 64, "not an e-mail address: write name@domain"),
                (["accounts", "show", "nobody@"], 64, "not an e-mail address"),
                (["accounts", "show", "nobody@example.com"], 4, "no person has this address"),
                (["accounts", "show", Self.kim, "--team", "BBBBBBBBBB"], 4, "leave out --team"),
                (
                    ["accounts", "list", "--app", "com.exmaple.one"], 4,
                    "pass one of com.example.one, com.example.other, com.example.two"
                ),
                (["sessions", "list", "--sub", Self.shared], 64, "2 subs begin with this"),
                (["sessions", "list", "--sub", "none"], 4, "no person has this id"),
                (["sessions", "show", "5f0c"], 64, "2 sessions begin with this"),
                (["sessions", "show", "none"], 4, "siwad sessions list shows some"),
                (["sessions", "end", "5f0c1d2e-", "--note", "x"], 64, "2 sessions begin with this"),
                (["sessions", "end", "--sub", "0019", "--note", "x"], 4, "begins with 8 or more characters of it"),
                (["notifications", "show", "none"], 4, "siwad notifications list shows some"),
                (["audit", "show", "99"], 4, "siwad audit list shows some"),
                (["audit", "show", "first"], 64, "siwad audit show"),
                (["audit", "list", "--operator", "none"], 4, "no actions match"),
            ]
            for (command, status, text) in mistakes {
                let run = try await siwad(command, environment: environment)
                #expect(run.status == status, "\(command): \(run.errors)")
                #expect(run.errorLines.count == 1 && run.errors.contains(text), "\(command): \(run.errors)")
                #expect(!run.errors.contains("\u{1b}") && !run.errors.contains("nobody"), "\(command): \(run.errors)")
            }
            let live = try await siwad(["sessions", "list", "--live", "--json"], environment: environment)
            #expect(try members("session_id", live) == [Self.phone + "2"])
        }
    }

    @Test("A session, its person and the audit say which operator ended it, and why.")
    func endings() async throws {
        try await withPeople { fixture, environment in
            let session = try await siwad(["sessions", "show", Self.phone + "1"], environment: environment)
            #expect(session.output.contains(": the operator sam ended it"), "\(session.output)")
            #expect(session.output.contains("phone stolen"))
            let live = try await siwad(["sessions", "show", Self.phone + "2"], environment: environment)
            #expect(live.output.contains("state      live"), "\(live.output)")
            let person = try await siwad(["accounts", "show", Self.kim], environment: environment)
            let sentence = "The operator sam ended session \(Self.phone)1: phone stolen (audit 1)"
            #expect(person.output.contains(sentence), "\(person.output)")
            for command in [["sessions", "show", Self.phone + "1"], ["sessions", "list", "--ended"]] {
                let run = try await siwad(command + ["--json"], environment: environment)
                #expect(
                    run.output.contains(#""ended_by":"sam","end_note":"phone stolen","end_action_id":1"#),
                    "\(run.output)"
                )
            }
            let byPerson = ["sessions", "end", "--sub", Self.shared + "1a", "--note", "asked", "--operator", "pat"]
            #expect(try await siwad(byPerson, environment: environment).output == Self.phone + "2\n")
            let last = try await siwad(["accounts", "show", Self.kim], environment: environment)
            #expect(last.output.contains("when the operator pat ended it"), "\(last.output)")
            let audit = try await siwad(["audit", "list", "--json"], environment: environment)
            #expect(try members("operator", audit) == ["pat", "sam"])
            #expect(
                audit.lines[0].contains(
                    #""action":"sessions end","target":"--sub \#(Self.kim)","note":"asked","affected":1"#
                )
            )
            let page = try await siwad(["audit", "show", "1"], environment: environment)
            #expect(page.output.contains("target    --session \(Self.phone)1"), "\(page.output)")
            let mine = ["audit", "list", "--operator", "sam", "--action", "sessions end", "--json"]
            #expect(try await siwad(mine, environment: environment).lines.count == 1)
        }
    }

    @Test("A consent that was revoked and given again ended older sessions only if there were some.")
    func olderSessions() async throws {
        try await withPeople { fixture, environment in
            for sub in [Self.kim, Self.lee] {
                try await fixture.run(
                    """
                    UPDATE siwa.consents SET revoked_at = authorized_at + interval '1 ms', authorized_at = authorized_at + interval '1 s'
                    WHERE account_id = (SELECT account_id FROM siwa.accounts WHERE sub = '\(sub)')
                    """
                )
            }
            let text = "it is in force again"
            let kim = try await siwad(["accounts", "show", Self.kim], environment: environment)
            #expect(kim.output.contains(", which ended older sessions; \(text)"), "\(kim.output)")
            let lee = try await siwad(["accounts", "show", Self.lee], environment: environment)
            #expect(lee.output.contains(text) && !lee.output.contains("older sessions"), "\(lee.output)")
        }
    }

    private static let listings = [
        ["accounts", "list"], ["accounts", "history"], ["sessions", "list"], ["notifications", "list"],
        ["dead-letters", "list"], ["dead-letters", "stats"], ["clients", "list"], ["audit", "list"],
    ]

    @Test("Every listing fits the terminal, and what it cuts is the beginning of the value.", arguments: [40, 80, 200])
    func width(columns: Int) async throws {
        try await withPeople { fixture, environment in
            try await fixture.run(
                """
                UPDATE siwa.accounts SET forwarding_disabled_at = now();
                INSERT INTO siwa.account_changes (account_id, app_id, facet, from_state, to_state, event_time, jti, sessions_ended)
                SELECT account_id, 'com.example.one', 'email', 'deliverable', 'undeliverable', now(), '\(Self.jti)', 0
                FROM siwa.accounts;
                INSERT INTO siwa.dead_letters (
                    received_at, last_received_at, reason, detail, body, token_digest, sub, aud, verified_kid, verified_at
                ) SELECT now(), now(), 'expired', 'The token expired.', '', sha256(''), '\(Self.kim)', 'com.example.one', 'k', now();
                """
            )
            let values = [Self.kim, Self.lee, Self.ash, Self.jti, Self.phone + "1", Self.phone + "2"]
            for command in Self.listings {
                let run = try await siwadOnTerminal(command, columns: columns, environment: environment)
                #expect(run.status == 0, "\(command): \(run.output)")
                for line in run.lines { #expect(line.count <= columns, "\(command): \(line)") }
                let cut = run.output.split { $0.isWhitespace }.filter { $0.hasSuffix("…") && $0.count > 6 }
                for word in cut where "05a4".contains(word.first ?? " ") {
                    #expect(values.contains { $0.hasPrefix(word.dropLast()) }, "\(command): \(word)")
                }
                let wide = try await siwadOnTerminal(command + ["--wide"], columns: columns, environment: environment)
                #expect(wide.status == 0 && !wide.output.contains("…"), "\(command): \(wide.output)")
            }
            let notifications = try await siwadOnTerminal(
                ["notifications", "list"],
                columns: columns,
                environment: environment
            )
            #expect(notifications.output.contains("APP"))
            #expect(notifications.output.contains("HAPPENED (UTC)") == (columns == 200), "\(notifications.output)")
            let sessions = try await siwadOnTerminal(["sessions", "list"], columns: columns, environment: environment)
            #expect(sessions.output.contains("ENDED BY") == (columns == 200), "\(sessions.output)")
            let letters = ["dead-letters", "list", "--sub", Self.shared + "1a"]
            #expect(try await siwadOnTerminal(letters, columns: columns, environment: environment).status == 0)
            let page = try await siwadOnTerminal(
                ["accounts", "show", Self.kim],
                columns: columns,
                environment: environment
            )
            #expect(page.status == 0 && page.output.contains("SESSIONS: 1 live of 2"), "\(page.output)")
        }
    }

    @Test("Listings have colour on a terminal only, and neither with NO_COLOR nor on a dumb terminal.")
    func color() async throws {
        try await withPeople { _, environment in
            for (variables, isColored) in [
                (["NO_COLOR": "", "TERM": "xterm"], true), (["TERM": "xterm"], false),
                (["NO_COLOR": "", "TERM": "dumb"], false),
            ] {
                for command in [["audit", "list"], ["sessions", "list"], ["accounts", "show", Self.kim]] {
                    let run = try await siwadOnTerminal(
                        command,
                        columns: 80,
                        environment: environment.merging(variables) { $1 }
                    )
                    #expect(run.output.contains("\u{1b}[") == isColored, "\(variables) \(command)")
                }
            }
        }
    }

    @Test("A full disk is an error, and a reader that leaves early is none.")
    func broken() async throws {
        try await withPeople { fixture, environment in
            // More than a pipe holds, so that the command is still writing when its reader leaves.
            try await fixture.run(
                "SELECT siwa.record_sign_in('com.example.one', 'p' || repeat('x', 100) || i) FROM generate_series(1, 1500) AS i"
            )
            let list = ["accounts", "list", "--limit", "2000", "--wide"]
            for command in [list, ["audit", "list"], ["sessions", "show", Self.phone + "1"]] {
                let full = try await siwad(command, redirectedBy: "> /dev/full", environment: environment)
                #expect(full.status == 1)
                #expect(
                    full.errors
                        == "siwad: standard output can't be written: No space left on device; the output is incomplete\n"
                )
            }
            let closed = try await siwad(list, redirectedBy: "| true", environment: environment)
            #expect(closed.status == 0 && closed.errors.isEmpty, "\(closed.errors)")
        }
    }
}
