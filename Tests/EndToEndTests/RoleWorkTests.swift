import AppleSimulator
import Foundation
import Postgres
import TestSupport
import Testing

@Suite("Work under the roles of the schema", .timeLimit(.minutes(10)))
struct RoleWorkTests {
    /// Runs a test with a login role of its own that is a member of a role of the schema, and with the conninfo that
    /// names it.
    private func withMember<R>(
        of role: String,
        _ fixture: DaemonFixture,
        _ body: (String) async throws -> R
    ) async throws -> R {
        let name = "member_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
        try await fixture.run("CREATE ROLE \(name) LOGIN IN ROLE \(role)")
        let result: Result<R, any Error>
        do {
            result = .success(try await body("\(fixture.conninfo) user=\(name)"))
        } catch {
            result = .failure(error)
        }
        try await fixture.run("DROP ROLE \(name)")
        return try result.get()
    }

    /// Why PostgreSQL refuses each statement to the role; nil for one that it doesn't refuse.
    private func refusals(_ statements: [String], as conninfo: String) async throws -> [String: String?] {
        let connection = try await DaemonFixture.connect(conninfo)
        var refusals: [String: String?] = [:]
        for statement in statements {
            do {
                try await connection.withSession { session throws(PostgresError) in
                    try session.execute(script: statement)
                }
                refusals[statement] = .some(nil)
            } catch {
                refusals[statement] = error.sqlState?.rawValue
            }
        }
        await connection.close()
        return refusals
    }

    /// What README has an application's role granted, for a role of another name.
    private static func readmeGrants(to role: String) throws -> String {
        let root = URL(filePath: #filePath).deletingLastPathComponent().appending(path: "../..")
        let text = try String(contentsOf: root.appending(path: "README.md"), encoding: .utf8)
        let start = try #require(text.firstRange(of: "CREATE ROLE shop LOGIN;\nGRANT siwad_application TO shop;"))
        return String(text[start.lowerBound...].prefix { $0 != "`" }).replacing("shop", with: role)
    }

    @Test("With the one role that README gives it, an application does all it has to, and can't undo a deletion.")
    func application() async throws {
        try await DaemonFixture.withDaemon { fixture, _, _ in
            let role = "shop_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run(Self.readmeGrants(to: role))
            let allowed = [
                "SELECT siwa.record_sign_in('com.example.one', 'p', 'a@b.example', true)",
                "SELECT siwa.open_session('com.example.one', 'p', 's')", "SELECT siwa.session_is_live('s')",
                "SELECT siwa.rotate_session('s', 't')", "SELECT siwa.extend_session('t', NULL)",
                "SELECT * FROM siwa.sessions_of('com.example.one', 'p')", "SELECT siwa.end_session('t')",
                "SELECT siwa.end_sessions('com.example.one', 'p')", "SELECT FROM siwa.account_states",
                "SELECT FROM siwa.account_history", "SELECT FROM siwa.changes", "SELECT siwa.position_at(now())",
                "SELECT FROM siwa.sessions", "SELECT FROM siwa.live_sessions",
                "SELECT FROM siwa.undeliverable_addresses",
            ]
            let refused = [
                "UPDATE siwa.accounts SET deleted_at = NULL", "UPDATE siwa.consents SET revoked_at = NULL",
                "SELECT FROM siwa.accounts", "SELECT FROM siwa.account_sessions", "SELECT siwa.grant_roles()",
                "UPDATE siwa.account_changes SET event_time = now()", "DELETE FROM siwa.account_changes",
                "SELECT siwa.publish_changes()", "SELECT FROM siwa.change_log", "SELECT siwa.rebase_publication()",
                "SELECT FROM siwa.notifications", "SELECT FROM siwa.dead_letters",
                "INSERT INTO siwa.signing_keys (url, kid, jwk) VALUES ('u', 'k', '{\"kid\":\"k\"}')",
            ]
            let refusals = try await refusals(allowed + refused, as: "\(fixture.conninfo) user=\(role)")
            #expect(allowed.allSatisfy { refusals[$0] == .some(nil) }, "\(refusals)")
            #expect(refused.allSatisfy { refusals[$0] == "42501" }, "\(refusals)")
            try await fixture.run("DROP OWNED BY \(role); DROP ROLE \(role)")
        }
    }

    private static let changesOfStructure = [
        "CREATE TABLE siwa.more (a integer)", "CREATE VIEW siwa.more AS SELECT 1",
        "CREATE FUNCTION siwa.more() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE siwa.accounts ADD more integer", "ALTER TABLE siwa.accounts DISABLE TRIGGER ALL",
        "DROP TABLE siwa.accounts", "DROP VIEW siwa.account_states", "DROP SCHEMA siwa CASCADE",
        "DROP INDEX siwa.accounts_email", "TRUNCATE siwa.notifications", "TRUNCATE siwa.operator_actions",
        "DROP FUNCTION siwa.session_is_live(text)", "ALTER FUNCTION siwa.session_is_live(text) SECURITY DEFINER",
        "SELECT siwa.grant_roles()", "CREATE ROLE more",
    ]

    @Test("The daemon takes every way under siwad_daemon: notification, letter, month, retention, erasure, spool.")
    func daemon() async throws {
        try await DaemonFixture.with { fixture in
            try await withMember(of: "siwad_daemon", fixture) { conninfo async throws in
                try await fixture.run(
                    """
                    SELECT siwa.ensure_notification_partitions('2020-01-01', '2020-01-31');
                    INSERT INTO siwa.accounts (team_id, sub, deleted_at, email, email_observed_at)
                    VALUES (
                        'AAAAAAAAAA', 'gone', now() - interval '90 days', 'gone@example.com', now() - interval '91 days'
                    )
                    """
                )
                let spool = try TemporaryDirectory()
                let settings = ["SIWAD_DATABASE_URL": conninfo, "SIWAD_SPOOL_DIRECTORY": spool.file("spool")]
                try await fixture.withDaemon(settings) { _, addresses async throws in
                    func post(_ event: SimulatedEvent) async throws {
                        #expect(try await Web.post(fixture.body(event), to: addresses.notifications).status == 200)
                    }
                    try await post(fixture.event("consent-revoked", id: "first"))
                    try await post(fixture.event(app: "com.example.unheard"))
                    try await eventually("maintenance") {
                        try await fixture.texts("SELECT task FROM siwa.maintenance").count == 7
                    }
                    #expect(
                        try await fixture.texts("SELECT to_regclass('siwa.notifications_y2020m01')::text") == ["NULL"]
                    )
                    #expect(try await fixture.texts("SELECT email FROM siwa.accounts WHERE sub = 'gone'") == ["NULL"])

                    let month = try #require(
                        try await fixture.texts("SELECT tableoid::regclass::text FROM siwa.notifications").first
                    )
                    try await fixture.run("DROP TABLE \(month)")
                    try await post(fixture.event(id: "after the month was dropped"))

                    try await fixture.closeDatabase()
                    try await eventually("the daemon to spool") {
                        try await Web.post(fixture.body(fixture.event(id: "spooled")), to: addresses.notifications)
                            .status
                            == 200
                    }
                    try await fixture.openDatabase()
                    try await eventually("the spool to be emptied") {
                        try await fixture.texts("SELECT jti FROM siwa.notifications WHERE jti = 'spooled'").count == 1
                    }
                    #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
                }
            }
        }
    }

    @Test("siwad_daemon can't change the structure, nor what was recorded.")
    func daemonLimits() async throws {
        try await DaemonFixture.with { fixture in
            try await withMember(of: "siwad_daemon", fixture) { conninfo async throws in
                let statements =
                    Self.changesOfStructure + [
                        "UPDATE siwa.operator_actions SET note = ''", "DELETE FROM siwa.operator_actions",
                        """
                        INSERT INTO siwa.operator_actions (operator, database_role, action, target, affected)
                        VALUES ('kim', 'another', 'x', 'y', 0)
                        """,
                        "UPDATE siwa.dead_letters SET resolved_by_role = 'forged'",
                        "UPDATE siwa.dead_letters SET last_failed_by_role = 'forged'",
                        "INSERT INTO siwa.dead_letters (resolved_by, resolved_by_role) VALUES ('kim', 'forged')",
                        """
                        INSERT INTO siwa.dead_letter_attempts (letter_id, attempt, attempted_at, database_role, reason, detail)
                        VALUES (1, 1, now(), 'forged', 'expired', '')
                        """,
                        "UPDATE siwa.dead_letter_attempts SET database_role = 'forged'",
                        "UPDATE siwa.notifications SET sub = 'other'",
                        "UPDATE siwa.account_changes SET to_state = 'deleted'",
                        "DELETE FROM siwa.account_changes", "DELETE FROM siwa.accounts", "DELETE FROM siwa.consents",
                        "DELETE FROM siwa.schema_migrations", "UPDATE siwa.schema_migrations SET checksum = ''",
                        "INSERT INTO siwa.schema_migrations VALUES (1000, 'more', '')",
                    ]
                for (statement, state) in try await refusals(statements, as: conninfo) {
                    #expect(state == "42501", "\(statement)")
                }
            }
        }
    }

    @Test("An operator does all of an operator's work under siwad_daemon.")
    func operatorWork() async throws {
        try await DaemonFixture.with { fixture in
            try await withMember(of: "siwad_daemon", fixture) { conninfo async throws in
                try await fixture.withDaemon { _, addresses async throws in
                    for sub in ["a", "b"] {
                        let body = try fixture.body(fixture.event(sub: sub, app: "com.example.added"))
                        #expect(try await Web.post(body, to: addresses.notifications).status == 200)
                    }
                }
                var environment = fixture.environment(["SIWAD_DATABASE_URL": conninfo])
                environment["SIWAD_APPS"] = "\(DaemonFixture.apps),CCCCCCCCCC/com.example.added"
                for arguments in [
                    ["replay", "--all", "--dry-run"], ["replay", "--id", "1", "--note", "x"],
                    ["discard", "--id", "2", "--note", "x"], ["reopen", "--id", "2", "--note", "x"],
                ] {
                    let done = try await siwad(["dead-letters"] + arguments, environment: environment)
                    #expect(done.status == 0, "\(arguments): \(done.errors)")
                }
                #expect(try await fixture.texts("SELECT sub FROM siwa.accounts") == ["a"])
                let member = try #require(conninfo.split(separator: "=").last)
                let roles = try await fixture.texts("SELECT resolved_by_role FROM siwa.dead_letters ORDER BY id")
                #expect(roles == [String(member), "NULL"])
            }
        }
    }

    @Test(
        "The database records the daemon's role for the letters that the daemon settles, and for the letters that it erases."
    )
    func daemonsOwnDecisions() async throws {
        try await DaemonFixture.with { fixture in
            try await withMember(of: "siwad_daemon", fixture) { conninfo async throws in
                let settings = ["SIWAD_DATABASE_URL": conninfo, "SIWAD_KEYS_REFRESH_FLOOR": "1s"]
                try await fixture.run(
                    """
                    INSERT INTO siwa.accounts (team_id, sub, deleted_at)
                    VALUES ('AAAAAAAAAA', 'gone', now() - interval '90 days');
                    INSERT INTO siwa.dead_letters
                        (received_at, last_received_at, reason, detail, body, token_digest, sub, verified_kid, verified_at)
                    VALUES (now(), now(), 'expired', 'd', 'b', sha256('b'), 'gone', 'k', now())
                    """
                )
                try await fixture.withDaemon(settings) { _, addresses async throws in
                    let rotated = try SimulatedApple.generate()
                    fixture.endpoint.now(.status(500))
                    let body = try fixture.body(fixture.event(id: "settled"), signedBy: rotated)
                    #expect(try await Web.post(body, to: addresses.notifications).status == 503)
                    fixture.endpoint.now(.keySet(rotated.keySetJSON))
                    try await eventually("both letters to be resolved") {
                        let again = try fixture.body(fixture.event(), signedBy: rotated)
                        _ = try await Web.post(again, to: addresses.notifications)
                        return try await fixture.texts("SELECT id::text FROM siwa.dead_letters WHERE status = 'open'")
                            .isEmpty
                    }
                }
                let member = try #require(conninfo.split(separator: "=").last)
                let resolved = try await fixture.texts(
                    "SELECT concat_ws(' ', reason, status, resolved_by, resolved_by_role) FROM siwa.dead_letters ORDER BY reason"
                )
                #expect(
                    resolved == [
                        "expired discarded siwad \(member)", "keys-unavailable replayed siwad \(member)",
                    ]
                )
            }
        }
    }

    @Test("siwad_reader lists and shows everything but tokens, and can change nothing at all.")
    func reader() async throws {
        try await DaemonFixture.with { fixture in
            try await fixture.withDaemon { _, addresses async throws in
                for event in [fixture.event(id: "known"), fixture.event(app: "com.example.unheard")] {
                    #expect(try await Web.post(fixture.body(event), to: addresses.notifications).status == 200)
                }
            }
            try await withMember(of: "siwad_reader", fixture) { conninfo async throws in
                let environment = fixture.environment(["SIWAD_DATABASE_URL": conninfo])
                for arguments in [
                    ["migrate", "status"], ["dead-letters", "list"], ["dead-letters", "stats"],
                    ["dead-letters", "show", "1"], ["notifications", "list"], ["notifications", "show", "known"],
                    ["accounts", "list"],
                    ["accounts", "show", "person"], ["accounts", "history", "person"],
                ] {
                    let run = try await siwad(arguments, environment: environment)
                    #expect(run.status == 0, "\(arguments): \(run.errors)")
                    #expect(!run.output.isEmpty, "\(arguments)")
                    #expect(!run.output.contains("eyJ"), "\(arguments): a token")
                }
                let change = try await siwad(
                    ["dead-letters", "discard", "--id", "1", "--note", "x"],
                    environment: environment
                )
                #expect(change.status == 1)
                #expect(change.errorLines.count == 1, "\(change.errors)")
                let statements =
                    Self.changesOfStructure + [
                        "SELECT jws FROM siwa.notifications", "SELECT body FROM siwa.dead_letters",
                        "SELECT sealed FROM siwa.apple_tokens", "SELECT code_sealed FROM siwa.sign_ins",
                        "SELECT * FROM siwa.notifications",
                        "SELECT siwa.ensure_notification_partitions(now() + interval '1 year', now() + interval '1 year')",
                        "SELECT siwa.drop_notification_partition(now() - interval '2 days')",
                        "SELECT siwa.record_sign_in('com.example.one', 'person')", "SELECT siwa.end_session('x')",
                    ]
                for (statement, state) in try await refusals(statements, as: conninfo) {
                    #expect(state == "42501", "\(statement)")
                }
                let writable = try await fixture.texts(
                    """
                    SELECT c.relname || ' ' || p FROM pg_class AS c, unnest('{INSERT,UPDATE,DELETE,TRUNCATE}'::text[]) AS p
                    WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind IN ('r', 'p', 'v')
                        AND has_table_privilege('siwad_reader', c.oid, p)
                    """
                )
                #expect(writable.isEmpty)
            }
        }
    }
}
