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
        let console = invocation.console
        // Otherwise the server would continue the migration of a process that has ended, and keep its locks.
        try await Services.runInterruptibly {
            do throws(PostgresError) {
                let applied = try await SchemaState.migrate(
                    settings,
                    onLockWait: { wait in
                        if let line = Self.line(about: wait) { console.note(line) }
                    },
                    onApplied: { console.print("applied \($0.number) \($0.name)") }
                )
                if applied.isEmpty { console.print("nothing to do: the schema is up to date") }
            } catch {
                if Task.isCancelled { console.note(Self.interruption(error)) }
                throw Self.failure(error)
            }
        }
    }

    /// The line about a wait; nil if the lines before it say enough.
    private static func line(about wait: Migrator.LockWait) -> String? {
        let elapsed = "\(wait.elapsed.components.seconds) s so far"
        switch wait.holder {
        case .session:
            return "migration \(wait.migration.number) (\(wait.migration.name)) waits for a lock of another session; "
                + "attempt \(wait.attempts + 1) follows, \(elapsed)"
        case .migrator(let process):
            // A migration of a large table may take an hour, and an attempt takes three seconds.
            guard wait.attempts % 20 == 1 else { return nil }
            let place = process.map { " (process \($0) of PostgreSQL)" } ?? ""
            return "waiting for another siwad migrate\(place), \(elapsed)"
        }
    }

    private static func interruption(_ error: PostgresError) -> String {
        error.isOutcomeUnknown
            ? "interrupted during a commit: \(nextCommand("migrate status")) shows whether it took effect"
            : "interrupted: what is not printed as applied was rolled back, and \(nextCommand("migrate")) continues with it"
    }

    private static func failure(_ error: PostgresError) -> any Error {
        let again = nextCommand("migrate")
        if error.code == .timedOut {
            let step = "see in pg_stat_activity what holds it up, and run \(again) again when that has ended"
            return CommandFailure(.unavailable, "\(error)", nextStep: step)
        }
        if error.sqlState == .lockNotAvailable {
            let step = "end the long transactions that pg_stat_activity shows, and run \(again) again"
            return CommandFailure(.unavailable, "\(error)", nextStep: step)
        }
        guard error.sqlState == .insufficientPrivilege else { return error }
        let step = "migrate as the owner of the schema siwa, or GRANT CREATE ON DATABASE … TO this role"
        return CommandFailure(.failed, "\(error)", nextStep: step)
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
