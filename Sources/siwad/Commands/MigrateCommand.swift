import ArgumentParser
import Postgres
import Schema
import Terminal

struct MigrateCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "migrate",
        abstract: "Bring the database's schema up to date.",
        discussion: """
            Needs a role that may create the schema siwa. The daemon's own role only needs to read and write rows.

            Example:
              siwad migrate --database-url postgres://postgres@localhost/app
            """,
        subcommands: [MigrateUpCommand.self, MigrateStatusCommand.self, MigrateSQLCommand.self],
        defaultSubcommand: MigrateUpCommand.self
    )
}

struct MigrateUpCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "up",
        abstract: "Apply the missing migrations, each in a transaction.",
        usage: "siwad migrate up [<options>]",
        discussion: "Example:\n  siwad migrate up --config /etc/siwad/siwad.yaml"
    )

    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let settings = try invocation.configuration.connectionSettings()
        let applied: [Migration]
        do throws(PostgresError) {
            applied = try await SchemaState.migrate(settings) { wait in
                invocation.console.note(
                    "migration \(wait.migration.number) (\(wait.migration.name)) waits for a lock of another session; "
                        + "attempt \(wait.attempts + 1) follows, \(wait.elapsed.components.seconds) s so far"
                )
            }
        } catch {
            if error.sqlState == .lockNotAvailable {
                let again = nextCommand("migrate")
                let step = "end the long transactions that pg_stat_activity shows, and run \(again) again"
                throw CommandFailure(.unavailable, "\(error)", nextStep: step)
            }
            guard error.sqlState == .insufficientPrivilege else { throw error }
            let step = "migrate as the owner of the schema siwa, or GRANT CREATE ON DATABASE … TO this role"
            throw CommandFailure(.failed, "\(error)", nextStep: step)
        }
        for migration in applied {
            invocation.console.print("applied \(migration.number) \(migration.name)")
        }
        if applied.isEmpty { invocation.console.print("nothing to do: the schema is up to date") }
    }
}

struct MigrateStatusCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "status",
        abstract: "List the migrations and their state in the database.",
        usage: "siwad migrate status [<options>]",
        discussion: """
            Ends with exit code 1 if the daemon would not start on this schema.

            Example:
              siwad migrate status --json
            """
    )

    @Flag(help: "Print one JSON object per migration.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let state = try await SchemaState.read(try invocation.configuration.connectionSettings())
        invocation.console.print(state, asJSON: json)
        if let problem = state.problem { throw CommandFailure(.failed, problem) }
    }
}

struct MigrateSQLCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "sql",
        abstract: "Print the SQL of all migrations, without using a database.",
        usage: "siwad migrate sql [<options>]",
        discussion: """
            For review, or for a DBA who applies it. Each migration is a transaction that also records the migration, so \
            that siwad migrate and siwad serve find the schema up to date. Use --after to omit the applied migrations, \
            which siwad migrate status lists.

            Example:
              siwad migrate sql | psql -v ON_ERROR_STOP=1 -d app
            """
    )

    @Option(parsing: .unconditional, help: ArgumentHelp("Only the migrations after this one.", valueName: "number"))
    var after = 0
    @OptionGroup var common: CommonOptions

    func validate() throws {
        guard 0...Schema.migrations.count ~= after else {
            throw ValidationError("--after is a number from 0 to \(Schema.migrations.count)")
        }
    }

    func run(_ invocation: Invocation) async throws {
        invocation.console.print(try SchemaState.migrator().script(after: after, checksum: SchemaVersion.checksum))
    }
}
