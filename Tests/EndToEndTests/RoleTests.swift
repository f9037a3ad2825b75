import AppleSimulator
import Foundation
import Postgres
import TestSupport
import Testing

@Suite("The roles of the schema", .timeLimit(.minutes(10)))
struct RoleTests {
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

    /// Every privilege that each role holds in the schema, as the catalogue tells it, but for what PUBLIC holds.
    private static let privileges = """
        SELECT concat_ws(' ', role, privilege, what)
        FROM unnest('{siwad_daemon,siwad_reader,siwad_application}'::text[]) AS role
        CROSS JOIN LATERAL (
            SELECT p AS privilege, c.relname AS what
            FROM pg_class AS c, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) AS p
            WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
                AND has_table_privilege(role, c.oid, p)
            UNION ALL
            SELECT p, c.relname || '.' || a.attname
            FROM pg_class AS c
            JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            CROSS JOIN unnest('{SELECT,INSERT,UPDATE,REFERENCES}'::text[]) AS p
            WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind IN ('r', 'p', 'v')
                AND has_column_privilege(role, c.oid, a.attnum, p) AND NOT has_table_privilege(role, c.oid, p)
            UNION ALL
            SELECT 'EXECUTE', f.proname
            FROM pg_proc AS f
            WHERE f.pronamespace = 'siwa'::regnamespace AND has_function_privilege(role, f.oid, 'EXECUTE')
                AND NOT has_function_privilege('public', f.oid, 'EXECUTE')
            UNION ALL
            SELECT 'CREATE', 'schema' WHERE has_schema_privilege(role, 'siwa', 'CREATE')
        ) AS held
        ORDER BY 1
        """

    private static let views = [
        "account_history", "account_names", "account_states", "changes", "live_sessions", "refresh_tokens", "sessions",
        "undeliverable_addresses",
    ]
    private static let tables = [
        "account_changes", "account_sessions", "accounts", "apple_tokens", "change_log", "clients", "consents",
        "dead_letter_attempts", "dead_letters", "deliveries", "delivery_attempts", "endpoint_states", "endpoints",
        "kept_names", "maintenance", "notifications", "operator_actions", "publication", "schema_migrations",
        "sign_ins", "signing_keys",
    ]
    /// The columns that siwad_reader may not read, in tables that it may read.
    private static let secrets = [
        "apple_tokens": "sealed", "dead_letters": "body", "notifications": "jws", "sign_ins": "code_sealed",
    ]
    /// The columns of a sign-in that siwad_application may read: neither the device nor the code.
    private static let signInColumns = [
        "sign_in_id", "presented_digest", "nonce_digest", "code_digest", "client_id", "app_id", "flow", "caller",
        "attempt", "signed_in_at", "received_at", "lease_until", "settled_at", "account_id", "session_id",
        "new_account", "real_user_status", "refresh", "refresh_error", "code_due_at", "code_attempts",
    ]
    /// What siwad_reader may not even read in part.
    private static let secretTables = ["endpoint_secrets"]
    private static let applicationFunctions = [
        "end_session", "end_sessions", "extend_session", "open_session", "position_at", "record_sign_in",
        "rotate_session", "session_is_live", "sessions_of",
    ]
    private static let readerFunctions = ["endpoint_wants", "position_at", "publication_age"]

    /// The columns of a dead letter that siwad_daemon sets when it keeps one.
    private static let receivedOfLetters = [
        "received_at", "last_received_at", "reason", "detail", "body", "token_digest", "jti", "aud", "sub",
        "event_type",
        "verified_kid", "verified_at",
    ]
    /// The columns of a dead letter that siwad_daemon changes afterwards: none that say when it was received, nor the
    /// database roles.
    private static let changedOfLetters = [
        "last_received_at", "deliveries", "reason", "detail", "status", "attempts", "body", "jti", "aud", "sub",
        "event_type", "verified_kid", "verified_at", "last_failed_at", "last_failed_by", "resolved_at", "resolved_by",
        "outcome", "note",
    ]
    /// Functions that every role may execute.
    private static let publicFunctions = [
        "calling_role", "change_scope", "change_type", "consent_state", "count_endpoint_revision",
        "drop_notification_partition", "email_state", "ensure_notification_partitions",
        "observation_wins", "record_database_role", "refuse_change_of_audit", "refuse_foreign_publication",
        "refuse_stale_snapshot",
    ]

    /// What siwad_daemon holds.
    private static var daemonRights: Set<String> {
        let helpers = [
            "answer_sign_in", "app_group", "check_identifier", "check_session_end_reason", "check_time",
            "claim_deliveries", "claim_exchanges", "endpoint_wants", "finish_exchange", "publication_age",
            "publish_changes", "rebase_publication", "refresh_outcome_of", "reserve_sign_in", "session_expiry",
            "settle_deliveries", "settle_sign_in", "store_refresh_token",
        ]
        var rights = (views + tables + secretTables).map { "SELECT \($0)" }
        rights += (applicationFunctions + helpers).map { "EXECUTE \($0)" }
        for table in ["accounts", "consents", "signing_keys", "maintenance"] {
            rights += ["INSERT \(table)", "UPDATE \(table)"]
        }
        for table in [
            "account_sessions", "apple_tokens", "clients", "deliveries", "endpoint_secrets", "endpoint_states",
            "endpoints", "kept_names", "sign_ins",
        ] {
            rights += ["INSERT \(table)", "UPDATE \(table)", "DELETE \(table)"]
        }
        rights += ["account_changes", "change_log", "delivery_attempts", "notifications"].map { "INSERT \($0)" }
        rights += ["UPDATE publication", "DELETE dead_letters", "DELETE notifications", "UPDATE notifications.jws"]
        rights += ["DELETE delivery_attempts"]
        rights += receivedOfLetters.map { "INSERT dead_letters.\($0)" }
        rights += changedOfLetters.map { "UPDATE dead_letters.\($0)" }
        rights += ["operator", "action", "target", "note", "affected"].map { "INSERT operator_actions.\($0)" }
        return Set(rights)
    }

    /// What every role holds, by role.
    private func privileges(_ query: String) async throws -> [String] {
        try await DaemonFixture.with { fixture in try await fixture.texts(query) }
    }

    @Test("No role holds a right on any table, column or function beyond the rights that are listed here.")
    func catalogue() async throws {
        var held: [String: Set<String>] = [:]
        for line in try await privileges(Self.privileges) {
            let words = line.split(separator: " ", maxSplits: 1).map(String.init)
            held[words[0], default: []].insert(words[1])
        }
        let application =
            Self.views.map { "SELECT \($0)" } + Self.signInColumns.map { "SELECT sign_ins.\($0)" }
            + Self.applicationFunctions.map { "EXECUTE \($0)" }
        #expect(held["siwad_application"] == Set(application))
        #expect(held["siwad_daemon"] == Self.daemonRights)

        let secrets = Self.secrets
        let reader = held["siwad_reader", default: []]
        let functions = Self.readerFunctions.map { "EXECUTE \($0)" }
        let open = Set((Self.views + Self.tables.filter { secrets[$0] == nil }).map { "SELECT \($0)" } + functions)
        #expect(reader.isSuperset(of: open))
        let columns = reader.subtracting(open)
        #expect(
            columns.allSatisfy { column in secrets.keys.contains { column.hasPrefix("SELECT \($0).") } }
        )
        for (table, column) in secrets { #expect(!columns.contains("SELECT \(table).\(column)")) }
    }

    @Test("PUBLIC may execute nothing but what derives a state, checks the caller's rights, or serves a trigger.")
    func publicFunctions() async throws {
        let executable = try await privileges(
            """
            SELECT proname FROM pg_proc
            WHERE pronamespace = 'siwa'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE')
            ORDER BY 1
            """
        )
        #expect(executable == Self.publicFunctions)
    }

    @Test("Exactly the functions for applications, months, earlier attempts and restored logs are run as the owner.")
    func definers() async throws {
        let definers = try await privileges(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'siwa'::regnamespace AND prosecdef ORDER BY 1"
        )
        let others = [
            "drop_notification_partition", "ensure_notification_partitions", "keep_earlier_attempt",
            "rebase_publication",
        ]
        #expect(definers == (Self.applicationFunctions + others).sorted())
    }

    /// Tries every statement that the catalogue allows to write, as the role that `test.role` names: reading, inserting and
    /// changing each column of each relation, deleting from and emptying each, calling each function. Each is undone.
    /// `test.allowed` then lists the statements that PostgreSQL allowed.
    private static let attempts = """
        DO $try$
        DECLARE
            attempt record;
            allowed text[] := '{}';
            is_allowed boolean;
        BEGIN
            FOR attempt IN
                WITH relation AS (
                    SELECT c.oid, c.relname AS name, c.relkind AS kind FROM pg_class AS c
                    WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
                ), field AS (
                    SELECT r.name, r.kind, a.attname AS field, format_type(a.atttypid, a.atttypmod) AS type
                    FROM relation AS r
                    JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
                )
                SELECT format('SELECT %s.%s', name, field) AS label, format('SELECT %I FROM siwa.%I LIMIT 0', field, name) AS sql
                FROM field
                UNION ALL
                SELECT format('INSERT %s.%s', name, field), format(
                    'INSERT INTO siwa.%I (%I) OVERRIDING SYSTEM VALUE SELECT NULL::%s WHERE false', name, field, type)
                FROM field WHERE kind <> 'S'
                UNION ALL
                SELECT format('UPDATE %s.%s', name, field), format('UPDATE siwa.%I SET %I = DEFAULT WHERE false', name, field)
                FROM field WHERE kind <> 'S'
                UNION ALL
                SELECT 'DELETE ' || name, format('DELETE FROM siwa.%I WHERE false', name) FROM relation WHERE kind <> 'S'
                UNION ALL
                SELECT 'TRUNCATE ' || name, format('TRUNCATE siwa.%I', name) FROM relation WHERE kind IN ('r', 'p')
                UNION ALL
                SELECT 'EXECUTE ' || p.proname, format(
                    'SELECT siwa.%I(%s)', p.proname,
                    (SELECT string_agg('NULL::' || format_type(t, NULL), ', ') FROM unnest(p.proargtypes) AS t))
                FROM pg_proc AS p WHERE p.pronamespace = 'siwa'::regnamespace
            LOOP
                BEGIN
                    EXECUTE format('SET LOCAL ROLE %I', current_setting('test.role'));
                    EXECUTE attempt.sql;
                    RAISE EXCEPTION USING ERRCODE = 'DONE0';
                EXCEPTION WHEN OTHERS THEN
                    -- A function that may be called fails because its arguments are null.
                    is_allowed := CASE
                        WHEN attempt.label LIKE 'EXECUTE %' THEN SQLSTATE <> '42501' ELSE SQLSTATE = 'DONE0' END;
                    IF is_allowed THEN allowed := allowed || attempt.label; END IF;
                    -- A right is missing, or no role can write to the view or to this column of it.
                    IF NOT is_allowed AND SQLSTATE NOT IN ('42501', '55000', '0A000') THEN
                        RAISE EXCEPTION '% fails with % (%)', attempt.sql, SQLERRM, SQLSTATE;
                    END IF;
                END;
            END LOOP;
            PERFORM set_config('test.allowed', array_to_string(allowed, ','), false);
        END $try$
        """

    @Test("Every statement that the catalogue allows to write succeeds for exactly the roles that are promised it.")
    func everyStatement() async throws {
        try await DaemonFixture.with { fixture in
            let stranger = "stranger_\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
            try await fixture.run("CREATE ROLE \(stranger)")
            var columns: [String: [String]] = [:]
            let listed = try await fixture.texts(
                """
                SELECT c.relname || '.' || a.attname FROM pg_class AS c
                JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                WHERE c.relnamespace = 'siwa'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
                """
            )
            for name in listed { columns[String(name.prefix { $0 != "." }), default: []].append(name) }
            func readable(_ relations: [String]) -> [String] {
                relations.flatMap { columns[$0, default: []].map { "SELECT \($0)" } }
            }
            let months = ["drop_notification_partition", "ensure_notification_partitions"]
            let harmless = Self.publicFunctions.filter { !months.contains($0) }.map { "EXECUTE \($0)" }
            let daemon = Self.daemonRights.flatMap { right in
                let words = right.split(separator: " ").map(String.init)
                // The right to a whole relation is one to each of its columns.
                guard words[0] != "DELETE", let all = columns[words[1]] else { return [right] }
                return all.map { "\(words[0]) \($0)" }
            }
            let secrets = Self.secrets.map { "SELECT \($0).\($1)" }
            let promised = [
                "siwad_application": readable(Self.views) + harmless
                    + Self.signInColumns.map { "SELECT sign_ins.\($0)" }
                    + Self.applicationFunctions.map { "EXECUTE \($0)" },
                "siwad_reader": readable(Self.views + Self.tables).filter { !secrets.contains($0) } + harmless
                    + Self.readerFunctions.map { "EXECUTE \($0)" },
                "siwad_daemon": daemon + harmless + months.map { "EXECUTE \($0)" },
                stranger: [],
            ]
            for (role, statements) in promised {
                try await fixture.run("SET test.role = '\(role)'; \(Self.attempts)")
                let allowed = Set(
                    try await fixture.texts("SELECT current_setting('test.allowed')")[0].split(separator: ",").map(
                        String.init
                    )
                )
                let beyond = allowed.subtracting(statements).sorted()
                #expect(beyond.isEmpty, "\(role) may do more than is promised")
                let missing = Set(statements).subtracting(allowed).sorted()
                #expect(missing.isEmpty, "\(role) may do less than is promised")
            }
            try await fixture.run("DROP ROLE \(stranger)")
        }
    }

    @Test("No function looks names up in the schemas of its caller.")
    func pinnedFunctions() async throws {
        // The bodies of the others were resolved when they were created.
        let unpinned = try await privileges(
            """
            SELECT proname FROM pg_proc
            WHERE pronamespace = 'siwa'::regnamespace AND prosqlbody IS NULL
                AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))
            """
        )
        #expect(unpinned.isEmpty)
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

    @Test("A user who may not create roles can migrate, and grants them once an administrator has created them.")
    func withoutRight() async throws {
        // A cluster of its own: in the shared one the roles are there.
        try await PrivateCluster.with { cluster in
            let superuser = try await DaemonFixture.connect(cluster.conninfo())
            func run(_ script: String) async throws {
                try await superuser.withSession { session throws(PostgresError) in try session.execute(script: script) }
            }
            try await run("CREATE ROLE plain LOGIN")
            try await run("CREATE DATABASE app OWNER plain")
            let conninfo = cluster.conninfo(database: "app") + " user=plain"
            let migrated = try await siwad(["migrate"], environment: ["SIWAD_DATABASE_URL": conninfo])
            #expect(migrated.status == 0, "\(migrated.errors)")
            #expect(migrated.errors.isEmpty)
            let owner = try await DaemonFixture.connect(conninfo)
            func granted() async throws -> String {
                try await owner.withSession { session throws(PostgresError) in
                    try session.execute(Statement(once: "SELECT siwa.grant_roles()::text")).string(0, 0)
                }
            }
            #expect(try await granted() == "{}")
            try await run("CREATE ROLE siwad_daemon; CREATE ROLE siwad_reader; CREATE ROLE siwad_application")
            #expect(try await granted() == "{siwad_daemon,siwad_reader,siwad_application}")
            #expect(try await granted() == "{siwad_daemon,siwad_reader,siwad_application}")
            await owner.close()
            await superuser.close()
        }
    }
}
