import AccountStore
import AppleTokens
import Basics
import JOSE
import Postgres
import Settings
import StoreTestSupport
import Terminal
import TestSupport
import Testing

@testable import siwad

@Suite("Commands with a database")
struct DatabaseCommandTests {
    private let person = Subject("000001.00000000000000000000000000000001.0001")

    /// Runs `body` with a migrated database in which one person has a session in each of two app groups.
    private func withPerson(_ body: ([String: String], TestDatabase) async throws -> Void) async throws {
        let person = person
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                for (index, client) in ["com.example.one", "com.example.two"].enumerated() {
                    try Applications.recordSignIn(
                        client: ClientID(client),
                        subject: person,
                        email: "a@privaterelay.appleid.com",
                        emailIsPrivate: true,
                        signedInAt: WallTime(seconds: 1_700_000_000),
                        in: session
                    )
                    try Applications.openSession(
                        client: ClientID(client),
                        subject: person,
                        session: "session-\(index + 1)",
                        createdAt: WallTime(seconds: 1_700_000_000),
                        in: session
                    )
                }
            }
            await connection.close()
            try await body(["SIWAD_DATABASE_URL": database.conninfo], database)
        }
    }

    @Test("Accounts are listed and shown with their history.")
    func accounts() async throws {
        try await withPerson { environment, _ in
            let list = await siwad("accounts", "list", environment: environment)
            #expect(list.status == .done)
            #expect(list.lines.count == 3)
            let json = await siwad("accounts", "list", "--app", "com.example.two", "--json", environment: environment)
            #expect(json.lines.count == 1)
            #expect(json.output.contains(#""app_id":"com.example.two","state":"authorized""#))
            let page = await siwad("accounts", "show", person.rawValue, environment: environment)
            #expect(page.status == .done)
            #expect(page.output.contains("deliverable: Apple never said otherwise"))
            let history = await siwad("accounts", "history", person.rawValue, environment: environment)
            #expect(history.lines.count == 3)
        }
    }

    @Test("A command that matches nothing ends with 4 and one line.")
    func nothing() async throws {
        try await withPerson { environment, _ in
            let accounts = await siwad("accounts", "list", "--state", "deleted", environment: environment)
            #expect(
                accounts
                    == CommandResult(status: .nothingMatched, output: "", errors: "siwad: no accounts match\n")
            )
            #expect(await siwad("accounts", "show", "unknown", environment: environment).status == .nothingMatched)
            #expect(await siwad("notifications", "list", environment: environment).status == .nothingMatched)
            #expect(await siwad("notifications", "show", "none", environment: environment).status == .nothingMatched)
        }
    }

    @Test("Sessions are ended once, by id or by person, and the audit records operator and note.")
    func sessions() async throws {
        try await withPerson { environment, database in
            let ended = await siwad(
                "sessions",
                "end",
                "session-1",
                "--note",
                "- phone stolen",
                "--operator",
                "kim",
                environment: environment
            )
            #expect(ended.status == .done)
            #expect(ended.output == "session-1\n")
            let again = await siwad("sessions", "end", "session-1", "--note", "again", environment: environment)
            #expect(again.status == .nothingMatched)
            let person = await siwad(
                "sessions",
                "end",
                "--sub",
                person.rawValue,
                "--note",
                "asked",
                "--operator",
                "kim",
                environment: environment
            )
            #expect(person.output == "session-2\n")
            let live = await siwad("sessions", "list", "--live", environment: environment)
            #expect(live.status == .nothingMatched)
            let connection = try await PostgresConnection.connect(database.settings)
            let audit = try await connection.withSession { session throws(PostgresError) in
                let rows = try session.execute(
                    Statement(once: "SELECT operator || ': ' || note FROM siwa.operator_actions ORDER BY action_id")
                )
                return [try rows.string(0, 0), try rows.string(1, 0)]
            }
            await connection.close()
            #expect(audit == ["kim: - phone stolen", "kim: asked"])
        }
    }

    @Test(
        "A URL in the place of a name is not repeated in the message.",
        arguments: [
            ["deliveries", "list", "--endpoint"], ["deliveries", "retry", "--dry-run", "--endpoint"],
            ["accounts", "list", "--app"],
            ["endpoints", "add", "shop", "--url", "https://a.example", "--note", "x", "--app"],
        ]
    )
    func urlAsName(command: [String]) async throws {
        try await withPerson { environment, _ in
            let keys = ["SIWAD_SEALING_KEYS": try SealingKeys.newLine(name: "a")]
            let result = await siwadCommand(
                command + ["https://u:S3cret@h/?S3cret"],
                environment: environment.merging(keys) { $1 }
            )
            #expect(result.errors.contains(Redaction.mask) && !result.errors.contains("S3cret"), "\(result.errors)")
        }
    }

    @Test("A database whose encoding is not UTF8 is a configuration error.")
    func encoding() async throws {
        try await TestDatabase.with { database in
            let administrator = try await PostgresConnection.connect(database.settings)
            let other = "\(database.name)_latin"
            try await administrator.withSession { session throws(PostgresError) in
                try session.execute(script: "CREATE DATABASE \(other) TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
            }
            let environment = [
                "SIWAD_DATABASE_URL": "\(database.conninfo) dbname=\(other)",
                "SIWAD_APPS": "AAAAAAAAAA/com.example.one", "SIWAD_KEYS_URL": "file:///nowhere",
            ]
            let problem = "the database's encoding is LATIN1; create one with ENCODING 'UTF8'"
            for command in ["migrate", "serve"] {
                let result = await siwad(command, environment: environment)
                #expect(result.status == .configuration)
                #expect(result.errors == "siwad: SIWAD_DATABASE_URL: \(problem)\n")
            }
            #expect(await siwad("doctor", environment: environment).output.contains(problem))
            try await administrator.withSession { session throws(PostgresError) in
                try session.execute(script: "DROP DATABASE \(other) WITH (FORCE)")
            }
            await administrator.close()
        }
    }

    @Test("A database that is not migrated is reported, then migrated once.")
    func migration() async throws {
        try await TestDatabase.with { database in
            let environment = ["SIWAD_DATABASE_URL": database.conninfo, "SIWAD_APPS": "AAAAAAAAAA/com.example.one"]
            let early = await siwad("accounts", "list", environment: environment)
            #expect(early.status == .configuration)
            #expect(early.errors.contains("the database is not migrated: run siwad migrate"))
            let signIn = ["sign-in", "--client-id", "com.example.one", "--code", "code"]
            let refused = await siwadCommand(signIn, environment: environment)
            #expect(refused.status == .configuration)
            #expect(refused.errors == "siwad: the database is not migrated: \(SchemaState.nextStep)\n")
            let serve = await siwad("serve", environment: environment)
            #expect(serve.status == .configuration)
            #expect(serve.errors == "siwad: the database is not migrated: \(SchemaState.nextStep)\n")
            #expect(await siwad("migrate", "status", environment: environment).status == .failed)
            let up = await siwad("migrate", environment: environment)
            #expect(up.status == .done)
            #expect(up.lines.first?.hasPrefix("applied 1 ") == true)
            let again = await siwad("migrate", "up", environment: environment)
            #expect(again.output == "nothing to do: the schema is up to date\n")
            #expect(await siwad("migrate", "status", "--json", environment: environment).status == .done)
        }
    }

    @Test("A migration that fails is named, and is no error of the configuration.")
    func failedMigration() async throws {
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "CREATE SCHEMA siwa; CREATE TABLE siwa.clients ()")
            }
            await connection.close()
            let result = await siwad("migrate", environment: ["SIWAD_DATABASE_URL": database.conninfo])
            #expect(result.status == .failed)
            #expect(result.errors.hasPrefix("siwad: migration 1 (accounts) failed: "), "\(result.errors)")
        }
    }

    @Test("A role that may not create the schema gets an error with the next step.")
    func forbiddenMigration() async throws {
        try await TestDatabase.with { database in
            let role = "mere_\(UInt32.random(in: 0 ... .max))"
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "CREATE ROLE \(role) LOGIN")
            }
            let environment = ["SIWAD_DATABASE_URL": database.conninfo + " user=\(role)"]
            let result = await siwad("migrate", environment: environment)
            #expect(result.status == .failed)
            #expect(
                result.errors.hasSuffix(
                    "migrate as the owner of the schema siwa, or GRANT CREATE ON DATABASE … TO this role\n"
                )
            )
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "DROP ROLE \(role)")
            }
            await connection.close()
        }
    }

    @Test("Where no connection is free, the next step is about connections, and not about the URL.")
    func noFreeConnection() async throws {
        try await TestDatabase.with(.siwa) { database in
            let role = "none_\(UInt32.random(in: 0 ... .max))"
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "CREATE ROLE \(role) LOGIN IN ROLE siwad_reader CONNECTION LIMIT 0")
            }
            let environment = ["SIWAD_DATABASE_URL": database.conninfo + " user=\(role)"]
            let result = await siwad("accounts", "list", environment: environment)
            #expect(result.status == .unavailable)
            #expect(result.errors.hasSuffix("or raise max_connections or the limit of the role\n"), "\(result.errors)")
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "DROP ROLE \(role)")
            }
            await connection.close()
        }
    }

    @Test(
        "With an unknown schema, no command reads or changes anything.",
        arguments: [
            (
                "INSERT INTO siwa.schema_migrations (number, name, checksum) VALUES (9999, 'tomorrow', 'f')",
                "is newer than"
            ),
            ("DELETE FROM siwa.schema_migrations WHERE number = 6", "misses 1 of"),
        ]
    )
    func otherSchema(change: String, words: String) async throws {
        try await withPerson { environment, database in
            let connection = try await PostgresConnection.connect(database.settings)
            try await connection.withSession { session throws(PostgresError) in try session.execute(script: change) }
            await connection.close()
            var environment = environment
            environment["SIWAD_APPS"] = "AAAAAAAAAA/com.example.one"
            let audited = ["--all", "--note", "why"]
            let commands = [
                ["accounts", "list"], ["accounts", "show", "x"], ["accounts", "history"], ["sessions", "list"],
                ["sessions", "end", "session-1", "--note", "why"], ["notifications", "list"],
                ["notifications", "show", "x"], ["dead-letters", "list"], ["dead-letters", "show", "1"],
                ["dead-letters", "stats"], ["dead-letters", "replay"] + audited, ["dead-letters", "discard"] + audited,
                ["dead-letters", "reopen"] + audited,
            ]
            let serve = await siwad("serve", environment: environment)
            #expect(serve.errors.contains(words))
            for command in commands {
                let result = await siwadCommand(command, environment: environment)
                #expect(result == serve, "\(command)")
            }
        }
    }

    private static let partitionsBetweenMonths = Statement(
        once: """
            SELECT count(*) FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'siwa.notifications'::regclass
                AND pg_get_expr(c.relpartbound, c.oid) !~ '-01 00:00:00.00.. TO .*-01 00:00:00.00..$'
            """
    )

    @Test(
        "The output of migrate sql migrates a database, in one or two parts.",
        arguments: [0, 3]
    )
    func migrationByHand(after done: Int) async throws {
        let all = await siwad("migrate", "sql")
        let later = await siwad("migrate", "sql", "--after", "\(done)")
        let earlier = done == 0 ? "" : String(all.output.dropLast(later.output.count))
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let misplaced = try await connection.withSession { session throws(PostgresError) in
                // Settings that an operator's psql may have.
                try session.execute(script: "SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Shanghai'")
                if !earlier.isEmpty { try session.execute(script: earlier) }
                try session.execute(script: later.output)
                try session.execute(script: "SET DateStyle = 'ISO, YMD'; SET TimeZone = 'UTC'")
                return try session.execute(Self.partitionsBetweenMonths).int64(0, 0)
            }
            #expect(misplaced == 0)
            await connection.close()
            let environment = ["SIWAD_DATABASE_URL": database.conninfo]
            let status = await siwad("migrate", "status", environment: environment)
            #expect(status.status == .done, "\(status.output)")
            let up = await siwad("migrate", environment: environment)
            #expect(up.output == "nothing to do: the schema is up to date\n")
            let list = await siwad("accounts", "list", environment: environment)
            #expect(list.errors == "siwad: no accounts match\n")
        }
        #expect(await siwad("migrate", "sql", "--after", "1000").status == .usage)
    }
}
