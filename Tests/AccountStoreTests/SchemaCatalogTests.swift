import AccountStore
import Glibc
import Postgres
import Schema
import StoreTestSupport
import TestSupport
import Testing

@Suite("Catalog of the schema")
struct SchemaCatalogTests {
    private static let directory =
        "/" + #filePath.split(separator: "/").dropLast(3).joined(separator: "/") + "/Schema"
    /// The path of the recorded catalog.
    private static let file = "\(directory)/catalog.txt"

    private func catalog(after script: String = "") async throws -> SchemaCatalog {
        try await TestDatabase.with(.siwa) { database in
            let connection = try await PostgresConnection.connect(database.settings)
            let catalog = try await connection.transaction { session throws(PostgresError) in
                try session.execute(script: script)
                return try SchemaCatalog(readFrom: session)
            }
            await connection.close()
            return catalog
        }
    }

    private func drift(after script: String) async throws -> SchemaDrift {
        SchemaDrift(of: try await catalog(after: script), from: .expected)
    }

    @Test("The embedded catalog is the one that the migrations create.")
    func embedded() async throws {
        let made = try await catalog()
        if getenv("SIWAD_RECORD_CATALOG") != nil {
            let stream = try #require(fopen(Self.file, "w"))
            fputs(made.text, stream)
            fclose(stream)
            return
        }
        let difference = SchemaDrift(of: made, from: .expected)
        let advice: Comment = "a migration changed: run the test with SIWAD_RECORD_CATALOG=1, look at the difference"
        #expect(difference == SchemaDrift(of: .expected, from: .expected), advice)
        #expect(difference.isNone && difference.foreign.isEmpty)
        // Compared outside the expectation: its message would print both catalogs and hide the difference above.
        let isSame = made == .expected || made.postgresVersion != SchemaCatalog.expected.postgresVersion
        #expect(isSame, advice)
    }

    @Test("Each file in Schema/Migrations is in the list of the migrations, with its number and name.")
    func listed() throws {
        let listed = Schema.migrations.map { migration in
            let number = "\(migration.number)"
            return String(repeating: "0", count: 4 - number.count) + number + "_\(migration.name).sql"
        }
        #expect(try TemporaryDirectory.names(at: "\(Self.directory)/Migrations") == listed)
    }

    @Test("In the script of all migrations, each migration after a failed one is refused.")
    func script() async throws {
        let migrator = try Migrator(Schema.migrations, schema: Schema.name)
        let transactions = migrator.script(checksum: { _ in "" }).split(separator: "\n-- Migration ")
        #expect(transactions.count == Schema.migrations.count + 1)
        try await TestDatabase.with { database in
            let connection = try await PostgresConnection.connect(database.settings)
            // As psql runs it without ON_ERROR_STOP if the third migration fails.
            for (index, transaction) in transactions.enumerated() where index != 3 {
                let error: PostgresError? = await {
                    do throws(PostgresError) {
                        try await connection.withSession { session throws(PostgresError) in
                            try session.execute(script: "-- Migration \(transaction)")
                        }
                        return nil
                    } catch {
                        return error
                    }
                }()
                #expect((error == nil) == (index < 3), "\(index): \(String(describing: error))")
                if index > 3 { #expect(error?.message.contains("migration \(index - 1)") == true, "\(index)") }
            }
            await connection.close()
        }
    }

    @Test("Writing and parsing a catalog gives the same catalog.")
    func text() {
        #expect(SchemaCatalog(text: SchemaCatalog.expected.text) == .expected)
        #expect(SchemaCatalog.expected.definitions.count > 100)
    }

    @Test(
        "Missing objects are reported by name.",
        arguments: [
            ("DROP VIEW siwa.undeliverable_addresses", "view undeliverable_addresses"),
            ("DROP INDEX siwa.account_changes_account", "index account_changes.account_changes_account"),
            (
                "ALTER TABLE siwa.accounts DROP CONSTRAINT accounts_sub_is_not_empty",
                "constraint accounts.accounts_sub_is_not_empty"
            ),
            ("DROP TABLE siwa.maintenance", "table maintenance"),
            ("DROP FUNCTION siwa.session_is_live CASCADE", "function session_is_live(text)"),
            ("ALTER TABLE siwa.signing_keys DROP COLUMN first_seen", "column signing_keys.first_seen"),
            (
                "DROP TRIGGER operator_actions_are_insert_only ON siwa.operator_actions",
                "trigger operator_actions.operator_actions_are_insert_only"
            ),
        ]
    )
    func missing(script: String, name: String) async throws {
        let drift = try await drift(after: script)
        #expect(drift.missing.map(\.description) == [name])
        #expect(drift.changed.isEmpty && drift.foreign.isEmpty)
    }

    @Test(
        "Changed objects are reported by name.",
        arguments: [
            ("ALTER TABLE siwa.dead_letters ALTER COLUMN note TYPE varchar(20)", "column dead_letters.note"),
            ("ALTER TABLE siwa.accounts ALTER COLUMN sub DROP NOT NULL", "column accounts.sub"),
            (
                "ALTER FUNCTION siwa.drop_notification_partition SECURITY INVOKER",
                "function drop_notification_partition(timestamp with time zone)"
            ),
            (
                "CREATE OR REPLACE FUNCTION siwa.refuse_stale_snapshot() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END'",
                "function refuse_stale_snapshot()"
            ),
        ]
    )
    func changed(script: String, name: String) async throws {
        let drift = try await drift(after: script)
        #expect(drift.changed.map(\.description) == [name])
        #expect(drift.missing.isEmpty && drift.foreign.isEmpty)
    }

    @Test("A month without an index, a changed view and a foreign object are reported.")
    func others() async throws {
        let month = try await drift(
            after: """
                DO $$ BEGIN EXECUTE (
                    SELECT 'ALTER TABLE siwa.' || relname || ' DROP CONSTRAINT ' || relname || '_jti_is_unique'
                    FROM pg_class WHERE relispartition AND relkind = 'r' ORDER BY relname LIMIT 1
                ); END $$
                """
        )
        #expect(month.changed.map(\.name) == ["notifications_month.notifications_month_jti_is_unique"])
        let view = try await drift(
            after: """
                CREATE OR REPLACE VIEW siwa.live_sessions AS
                SELECT session_id, team_id, sub, app_id, created_at, signed_in_at, expires_at, account_id FROM siwa.sessions
                """
        )
        let isSameVersion = try await catalog().postgresVersion == SchemaCatalog.expected.postgresVersion
        #expect(view.changed.map(\.description) == (isSameVersion ? ["view body live_sessions"] : []))
        let foreign = try await drift(after: "CREATE INDEX mine ON siwa.accounts (first_heard_at)")
        #expect(foreign.foreign.map(\.description) == ["index accounts.mine"])
        #expect(foreign.isNone)
        #expect(try await drift(after: "SET search_path = siwa").isNone)
    }
}
