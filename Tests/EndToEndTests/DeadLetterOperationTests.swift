import AppleSimulator
import Glibc
import JOSE
import StoreTestSupport
import Testing

@Suite("Operations on dead letters", .timeLimit(.minutes(10)))
struct DeadLetterOperationTests {
    private static let added = "com.example.added"

    /// The result of a notification, and the operator's correction.
    private struct Case: Sendable {
        let reason: String
        let token: String
        /// A text on the page of the letter.
        let explanation: String
        /// Removes the cause.
        var script = ""
        var flags: [String] = []
        var leeway = "1s"
    }

    private func cases(_ fixture: DaemonFixture) throws -> [Case] {
        var expired = fixture.event("consent-revoked", sub: "expired")
        expired.issuedAt -= 3 * 86_400
        expired.eventTime -= 3 * 86_400_000
        var early = fixture.event(sub: "early")
        // Ahead by less than the larger leeway, and by far more than the time of the cases before it.
        early.eventTime += 220_000
        let apple = fixture.apple
        let understood = try apple.token(for: fixture.event(sub: "understood"))
        let read = try apple.token(for: fixture.event(sub: "read"))
        return try [
            Case(
                reason: "unknown-audience",
                token: apple.token(for: fixture.event("account-deleted", sub: "audience", app: Self.added)),
                explanation: "TEAMID/\(Self.added)",
                flags: ["--apps", "\(DaemonFixture.apps),CCCCCCCCCC/\(Self.added)"]
            ),
            Case(
                reason: "unknown-event-type",
                token: apple.token(for: fixture.event("person-promoted")),
                explanation: "person-promoted",
                // As if this version of siwad understood the type.
                script: Self.exchange("unknown-event-type", by: understood)
            ),
            Case(
                reason: "malformed-claims",
                token: apple.token(claims: fixture.event().claims(issuer: apple.issuer, events: "[]")),
                explanation: "exactly one event",
                script: Self.exchange("malformed-claims", by: read)
            ),
            Case(
                reason: "expired",
                token: apple.token(for: expired),
                explanation: "--accept-expired",
                flags: ["--accept-expired"]
            ),
            Case(
                reason: "not-yet-valid",
                token: apple.token(for: early),
                explanation: "ahead of the time at which it was received",
                leeway: "5m"
            ),
            Case(
                reason: "store-rejected",
                token: apple.token(for: fixture.event(sub: "poison")),
                explanation: "no_poison",
                script: "ALTER TABLE siwa.accounts DROP CONSTRAINT no_poison"
            ),
        ]
    }

    private static func exchange(_ reason: String, by token: String) -> String {
        "UPDATE siwa.dead_letters SET body = convert_to('\(token)', 'UTF8') WHERE reason = '\(reason)'"
    }

    /// Letters that can't be replayed.
    private func insertLetters(_ count: Int, in fixture: DaemonFixture) async throws {
        try await fixture.run(
            """
            INSERT INTO siwa.dead_letters (
                received_at, last_received_at, reason, detail, body, token_digest, sub, aud, verified_kid, verified_at
            )
            SELECT now(), now(), 'expired', '', 'no token', sha256(i::text::bytea), 'p', 'a', 'k', now()
            FROM generate_series(1, \(count)) AS i
            """
        )
    }

    @Test("An interrupted replay prints its progress, ends by the signal, and continues when it is run again.")
    func interruption() async throws {
        try await DaemonFixture.with { fixture in
            try await insertLetters(1_000, in: fixture)
            let replay = ["dead-letters", "replay", "--all", "--note", "why", "--rate", "20"]
            let run = try await siwad(replay, environment: fixture.environment(), interruptedAfter: 6)
            #expect(run.status == 128 + SIGINT, "\(run.errors)")
            #expect(
                run.errors.hasSuffix(" stay open so far; the same command goes on with what is left\n"),
                "\(run.errors)"
            )
            let tried = "SELECT count(*)::text FROM siwa.dead_letters WHERE attempts > 1"
            let said = run.errors.split(separator: " ").dropFirst(2).first.map(String.init)
            #expect(try await fixture.texts(tried) == [said])
        }
    }

    @Test("The entry of each batch of a long list of numbers names only the letters of the batch.")
    func manyNumbers() async throws {
        try await DaemonFixture.with { fixture in
            try await insertLetters(2_100, in: fixture)
            let numbers = try await fixture.texts("SELECT l.id::text FROM siwa.dead_letters AS l ORDER BY l.id")
            for verb in ["discard", "reopen"] {
                let arguments = ["dead-letters", verb] + numbers.reversed() + ["--note", "why"]
                let run = try await siwad(arguments, environment: fixture.environment())
                #expect(run.status == 0 && run.output == "2100 \(verb)ed\n", "\(run.errors)")
                let entries = try await fixture.texts(
                    """
                    SELECT concat_ws(' ', affected, count(*), min(match[1]::bigint), max(match[1]::bigint))
                    FROM siwa.operator_actions, regexp_matches(target, '--id ([0-9]+)', 'g') AS match
                    WHERE action = 'dead-letters \(verb)' GROUP BY action_id ORDER BY action_id
                    """
                )
                #expect(
                    entries == [
                        "2000 2000 \(numbers[0]) \(numbers[1999])", "100 100 \(numbers[2000]) \(numbers[2099])",
                    ]
                )
            }
        }
    }

    @Test("For each reason, the letter is kept and explained, and a replay has its effect once the cause is removed.")
    func reasons() async throws {
        try await DaemonFixture.withDaemon(["SIWAD_CLOCK_LEEWAY": "1s"]) { fixture, daemon, addresses in
            try await fixture.run("ALTER TABLE siwa.accounts ADD CONSTRAINT no_poison CHECK (sub <> 'poison')")
            let environment = fixture.environment(["SIWAD_CLOCK_LEEWAY": "1s"])
            for one in try cases(fixture) {
                let body = SimulatedApple.body(token: one.token)
                #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                try await operate(one, fixture, environment)
            }
            try await keysUnavailable(fixture, daemon, addresses, environment)
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters WHERE status <> 'replayed'").isEmpty)
            let people = try await fixture.texts("SELECT sub || ' ' || state FROM siwa.account_states ORDER BY 1")
            #expect(
                people == [
                    "audience deleted", "early unknown", "expired revoked", "keyless unknown", "poison unknown",
                    "read unknown", "understood unknown",
                ]
            )
        }
    }

    private func operate(_ one: Case, _ fixture: DaemonFixture, _ environment: [String: String]) async throws {
        let ids = try await fixture.texts("SELECT id::text FROM siwa.dead_letters WHERE reason = '\(one.reason)'")
        let id = try #require(ids.first)
        let page = try await siwad(["dead-letters", "show", id], environment: environment)
        #expect(page.status == 0)
        #expect(page.output.contains(one.explanation), "\(one.reason): \(page.output)")
        let replay = ["dead-letters", "replay", "--id", id, "--note", "as asked", "--json"]
        let early = try await siwad(replay, environment: environment)
        #expect(early.status == 1, "\(one.reason): \(early.output)")
        if !one.script.isEmpty { try await fixture.run(one.script) }
        let environment = environment.merging(["SIWAD_CLOCK_LEEWAY": one.leeway]) { $1 }
        let dry = try await siwad(
            ["dead-letters", "replay", "--id", id, "--dry-run", "--json"] + one.flags,
            environment: environment
        )
        #expect(dry.output.contains(#""would_become":"applied""#), "\(one.reason): \(dry.output)\(dry.errors)")
        let replayed = try await siwad(replay + one.flags, environment: environment)
        #expect(replayed.status == 0, "\(one.reason): \(replayed.output)\(replayed.errors)")
        #expect(replayed.output.contains(#""replayed":1"#), "\(one.reason): \(replayed.output)")
    }

    private func keysUnavailable(
        _ fixture: DaemonFixture,
        _ daemon: DaemonProcess,
        _ addresses: DaemonProcess.Addresses,
        _ environment: [String: String]
    ) async throws {
        let rotated = try SimulatedApple.generate()
        fixture.endpoint.now(.status(500))
        let body = try fixture.body(fixture.event(sub: "keyless"), signedBy: rotated)
        #expect(try await Web.post(body, to: addresses.notifications).status == 503)
        // It would replay the letter itself as soon as it has the key.
        await daemon.kill()
        let replay = ["dead-letters", "replay", "--reason", "keys-unavailable", "--note", "Apple is back"]
        #expect(try await siwad(replay, environment: environment).status == 1)
        fixture.endpoint.now(.keySet(rotated.keySetJSON))
        let replayed = try await siwad(replay, environment: environment)
        #expect(replayed.status == 0, "\(replayed.output)\(replayed.errors)")
    }

    @Test("A replay of 20,000 letters that is killed five times replays each letter once, with one effect each.")
    func killed() async throws {
        let seed = UInt64.random(in: .min ... .max)
        print("killing by seed \(seed)")
        var generator = SeededGenerator(seed: seed)
        try await DaemonFixture.with { fixture in
            try await fixture.run(Self.twentyThousand)
            let environment = fixture.environment()
            let arguments = ["dead-letters", "replay", "--all", "--note", "kill test"]
            for kill in 1...5 {
                let target = try await replayed(fixture) + Int.random(in: 1..<3_000, using: &generator)
                let process = DaemonProcess(arguments + ["--rate", "5000"], environment: environment)
                try await eventually("\(target) letters to be replayed", within: .seconds(120)) {
                    try await replayed(fixture) >= target && process.processID != nil || process.status != nil
                }
                if kill.isMultiple(of: 2) {
                    try await Task.sleep(for: .microseconds(Int.random(in: 0..<60_000, using: &generator)))
                } else {
                    try await eventually("a transaction") { try await !fixture.texts(Self.transactions).isEmpty }
                }
                let id = try #require(process.processID)
                #expect(Glibc.kill(id, SIGKILL) == 0)
                #expect(try await process.end() == 137, "seed \(seed)")
                #expect(try await fixture.texts(Self.torn).isEmpty, "seed \(seed)")
            }
            let last = try await siwad(arguments, environment: environment)
            #expect(last.status == 0, "seed \(seed): \(last.errors)")
            #expect(try await fixture.texts(Self.torn).isEmpty, "seed \(seed)")
            let totals = try await fixture.texts(Self.totals)
            #expect(totals == ["20000 20000 20000 20000 15000 5000 20000"], "seed \(seed)")
            #expect(try await siwad(arguments, environment: environment).status == 4)
        }
    }

    private func replayed(_ fixture: DaemonFixture) async throws -> Int {
        let count = try await fixture.texts("SELECT count(*)::text FROM siwa.dead_letters WHERE status = 'replayed'")
        return Int(count[0]) ?? 0
    }

    /// Transactions of other sessions.
    private static let transactions = """
        SELECT state FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        """

    /// Replayed letters without a notification, and notifications whose letter is not replayed.
    private static let torn = """
        SELECT coalesce(d.jti, n.jti)
        FROM (SELECT jti FROM siwa.dead_letters WHERE status = 'replayed') AS d
        FULL JOIN siwa.notifications AS n USING (jti)
        WHERE d.jti IS NULL OR n.jti IS NULL
        """

    /// Letters replayed at their second attempt, notifications, changes, accounts changed, sessions ended, sessions
    /// alive, letters replayed according to the audit.
    private static let totals = """
        SELECT concat_ws(
            ' ',
            (SELECT count(*) FROM siwa.dead_letters WHERE status = 'replayed' AND attempts = 2 AND outcome = 'applied'),
            (SELECT count(*) FROM siwa.notifications WHERE source = 'replay'),
            (SELECT count(*) FROM siwa.account_history),
            (SELECT count(DISTINCT account_id) FROM siwa.account_history),
            (SELECT sum(sessions_ended) FROM siwa.account_history),
            (SELECT count(*) FROM siwa.live_sessions),
            (SELECT sum(affected) FROM siwa.operator_actions)
        )
        """

    /// 20,000 people with a session each, and a letter about each, verified at receipt: three of four end the session.
    private static let twentyThousand = """
        CREATE FUNCTION base64url(value text) RETURNS text LANGUAGE sql IMMUTABLE AS
            $$ SELECT replace(translate(encode(convert_to(value, 'UTF8'), 'base64'), '+/=', '-_'), E'\\n', '') $$;
        INSERT INTO siwa.accounts (team_id, sub) SELECT 'AAAAAAAAAA', 'person' || i FROM generate_series(1, 20000) AS i;
        INSERT INTO siwa.consents (account_id, app_id, authorized_at)
        SELECT account_id, 'com.example.one', now() - interval '1 day' FROM siwa.accounts;
        INSERT INTO siwa.account_sessions (session_id, account_id, app_id, created_at, signed_in_at)
        SELECT 'session' || account_id, account_id, app_id, authorized_at, authorized_at FROM siwa.consents;
        INSERT INTO siwa.dead_letters (
            received_at, last_received_at, reason, detail, body, token_digest, jti, verified_kid, verified_at
        )
        SELECT
            now(), now(), 'unknown-audience', 'A sentence.',
            convert_to(
                base64url('{"kid":"gone","alg":"RS256"}') || '.' || base64url(
                    format(
                        '{"iss":"https://appleid.apple.com","aud":"com.example.one","iat":%s,"jti":"jti%s","events":%s}',
                        s, i, to_json(format('{"type":"%s","sub":"person%s","event_time":%s}', t, i, s - 60))
                    )
                ) || '.' || repeat('A', 342),
                'UTF8'
            ),
            sha256(convert_to(i::text, 'UTF8')), 'jti' || i, 'gone', now()
        FROM generate_series(1, 20000) AS i
        CROSS JOIN LATERAL (
            SELECT
                extract(epoch FROM now())::bigint AS s,
                (ARRAY['email-disabled', 'consent-revoked', 'account-deleted', 'consent-revoked'])[i % 4 + 1] AS t
        ) AS v
        """
}
