import AppleTokens
import Postgres
import Schema
import Terminal

/// How the schema of a database stands against the one in this binary.
struct SchemaState: Sendable {
    /// Every migration that the binary or the database knows, in order.
    let migrations: [MigrationStatus]

    /// Reads it over a connection of its own.
    static func read(_ settings: ConnectionSettings) async throws(PostgresError) -> SchemaState {
        let connection = try await PostgresConnection.connect(settings)
        let migrator = try Migrator(Schema.migrations, schema: Schema.name)
        let state = SchemaState(migrations: try await migrator.status(on: connection))
        await connection.close()
        return state
    }

    /// Reads it over a pool's connection.
    static func read(_ pool: ConnectionPool) async throws(PostgresError) -> SchemaState {
        let migrator = try Migrator(Schema.migrations, schema: Schema.name)
        return SchemaState(
            migrations: try await pool.transaction(.repeatableRead) { session throws(PostgresError) in
                try migrator.status(in: session)
            }
        )
    }

    /// Applies what is missing, over a connection of its own.
    ///
    /// - Parameter onLockWait: called when a migration has to be tried again because another session holds a lock.
    static func migrate(
        _ settings: ConnectionSettings,
        onLockWait: (Migrator.LockWait) -> Void = { _ in }
    ) async throws(PostgresError) -> [Migration] {
        let connection = try await PostgresConnection.connect(settings)
        let migrator = try Migrator(Schema.migrations, schema: Schema.name)
        let applied = try await migrator.up(on: connection, onLockWait: onLockWait)
        await connection.close()
        return applied
    }

    /// What `migrate` does, as SQL for somebody else to run.
    ///
    /// - Parameter done: the number of the last migration that the database has.
    static func script(after done: Int) throws(PostgresError) -> String {
        try Migrator(Schema.migrations, schema: Schema.name).script(after: done, checksum: SchemaVersion.checksum)
    }

    /// Refuses a schema that this binary doesn't know: what it reads there may mean something else, and what it writes
    /// may be wrong.
    ///
    /// - Throws: `CommandFailure` of what ``problem`` says.
    func check() throws(CommandFailure) {
        if let problem { throw CommandFailure(.configuration, problem) }
    }

    /// Why siwad can't work with this schema, with the next step; nil if it can.
    var problem: String? {
        let pending = migrations.filter { $0.state == .pending }
        if let unknown = migrations.first(where: { $0.state == .unknown }) {
            return "the database is newer than this siwad (migration \(unknown.number) \(unknown.name)): install the "
                + "siwad that migrated it"
        }
        if let changed = migrations.first(where: { $0.state == .changed }) {
            return "migration \(changed.number) \(changed.name) in the database is not the one of this siwad: install "
                + "the siwad that migrated it"
        }
        if pending.isEmpty { return nil }
        if pending.count == migrations.count { return "the database is not migrated: \(Self.nextStep)" }
        return "the database misses \(pending.count) of \(migrations.count) migrations: \(Self.nextStep)"
    }

    /// The daemon's own role may not.
    static let nextStep = "run siwad migrate as a role that may create the schema"

    /// For people.
    var table: Table {
        var table = Table([
            .init("NUMBER", isRightAligned: true), .init("NAME", cut: .end), .init("STATE"), .init("APPLIED (UTC)"),
        ])
        for migration in migrations {
            table.append([
                Table.Cell("\(migration.number)"), Table.Cell(migration.name),
                Table.Cell(migration.state.rawValue, color: migration.state == .applied ? .green : .yellow),
                Table.Cell(migration.appliedAt.map { WallTime(microseconds: $0.microseconds).column }),
            ])
        }
        return table
    }

    /// For programs.
    var json: [JSONText] {
        migrations.map { migration in
            .object([
                .init("number", .integer(Int64(migration.number))), .init("name", .string(migration.name)),
                .init("state", .string(migration.state.rawValue)),
                .init("applied_at", migration.appliedAt.map { WallTime(microseconds: $0.microseconds) }.json),
            ])
        }
    }
}
