import Postgres
import Testing

@Suite("The roles of the schema", .timeLimit(.minutes(10)))
struct RoleTests {
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

    @Test("None of the roles can log in, or may do more than its privileges allow.")
    func attributes() async throws {
        // The migrations created them: the cluster of the tests is a fresh one.
        let roles = try await privileges(
            """
            SELECT rolname::text FROM pg_roles
            WHERE rolname IN ('siwad_daemon', 'siwad_reader', 'siwad_application')
                AND NOT (rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)
            ORDER BY 1
            """
        )
        #expect(roles == ["siwad_application", "siwad_daemon", "siwad_reader"])
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

    @Test("siwa.grant_roles gives each role exactly the rights of the migrated schema, and takes any other away.")
    func grantedAgain() async throws {
        try await DaemonFixture.with { fixture in
            let migrated = try await fixture.texts(Self.privileges)
            try await fixture.run("GRANT SELECT ON siwa.notifications TO siwad_application")
            let granted = try await fixture.texts(Self.privileges)
            #expect(Set(granted).subtracting(migrated) == ["siwad_application SELECT notifications"])
            try await fixture.run("SELECT siwa.grant_roles()")
            #expect(try await fixture.texts(Self.privileges) == migrated)
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
