/// Brings a database to the last of a list of migrations, and tells how it stands.
///
/// What was applied is recorded in `schema_migrations` with the SHA-256 of its text. Each migration and its record are
/// one transaction under an advisory lock, so that any number of processes may migrate at once.
package struct Migrator: Sendable {
    /// In order of their numbers.
    package let migrations: [Migration]
    let schema: String
    let table: String
    private let statements: Statements

    /// - Parameter schema: the schema, made when it is not there, that holds the table `schema_migrations`.
    /// - Throws: `usage` unless the numbers are 1, 2, 3 …
    package init(_ migrations: [Migration], schema: String) throws(PostgresError) {
        guard migrations.map(\.number) == Array(1..<(migrations.count + 1)) else {
            throw PostgresError(.usage, "migrations are to be numbered 1, 2, 3 … without a gap")
        }
        self.migrations = migrations
        self.schema = Self.quoted(schema)
        self.table = "\(Self.quoted(schema)).schema_migrations"
        self.statements = Statements(table: table)
    }

    /// Every migration that is at hand or in the database, in order. Changes nothing.
    ///
    /// - Throws: whatever `PostgresConnection.transaction` throws.
    package func status(on connection: PostgresConnection) async throws(PostgresError) -> [MigrationStatus] {
        try await connection.transaction(.repeatableRead) { session throws(PostgresError) in
            try status(in: session)
        }
    }

    /// Every migration that is at hand or in the database, in order, within a transaction. Changes nothing.
    package func status(in session: borrowing Session) throws(PostgresError) -> [MigrationStatus] {
        let sums = try session.execute(statements.checksums, Binds { $0.append(array: migrations.map(\.sql)) })
        var recorded: [Int: (name: String, checksum: String, at: Timestamp)] = [:]
        if try tableExists(session) {
            let rows = try session.execute(statements.applied)
            for row in 0..<rows.count {
                recorded[Int(try rows.int32(row, 0))] = (
                    try rows.string(row, 1), try rows.string(row, 2), try rows.timestamp(row, 3)
                )
            }
        }
        var result: [MigrationStatus] = []
        for (row, migration) in migrations.enumerated() {
            let record = recorded.removeValue(forKey: migration.number)
            let isSame = try record?.checksum == sums.string(row, 0)
            result.append(
                MigrationStatus(
                    number: migration.number,
                    name: migration.name,
                    state: record == nil ? .pending : isSame ? .applied : .changed,
                    appliedAt: record?.at
                )
            )
        }
        for (number, record) in recorded.sorted(by: { $0.key < $1.key }) {
            result.append(MigrationStatus(number: number, name: record.name, state: .unknown, appliedAt: record.at))
        }
        return result
    }

    /// Why a migration has not been applied yet, and how long it has been tried.
    package struct LockWait: Sendable {
        /// The migration.
        package let migration: Migration
        /// The attempts that ended because another session held a lock; from 1.
        package let attempts: Int
        /// Since the first of them began.
        package let elapsed: Duration
    }

    /// Applies what is pending, in order, each in a transaction of its own.
    ///
    /// A migration that has to wait for a lock stops every statement that comes after it to the same table. So it waits
    /// for two seconds at most, lets those statements pass, and tries again.
    ///
    /// - Parameters:
    ///   - deadline: for each of them.
    ///   - patience: how long a migration is tried again while other sessions hold locks.
    ///   - onLockWait: called after each attempt that ended because of a lock.
    /// - Returns: those that this call applied.
    /// - Throws: `migration` if the database has a migration that is unknown or has another text, or if one fails, with
    ///   SQLSTATE 55P03 if a lock was not to be had; those before it stay applied.
    @discardableResult
    package func up(
        on connection: PostgresConnection,
        deadline: Duration = .seconds(3600),
        patience: Duration = .seconds(600),
        onLockWait: (LockWait) -> Void = { _ in }
    ) async throws(PostgresError) -> [Migration] {
        try await connection.transaction(deadline: deadline) { session throws(PostgresError) in
            try lock(session)
            if try !tableExists(session) { try createTable(session) }
        }
        var applied: [Migration] = []
        for migration in migrations {
            let begun = ContinuousClock.now
            var attempts = 0
            while true {
                do throws(PostgresError) {
                    if try await apply(migration, on: connection, deadline) { applied.append(migration) }
                    break
                } catch {
                    let elapsed = begun.duration(to: .now)
                    guard error.sqlState == .lockNotAvailable, elapsed < patience else { throw error }
                    attempts += 1
                    onLockWait(LockWait(migration: migration, attempts: attempts, elapsed: elapsed))
                    do {
                        try await Task.sleep(for: Self.pauseAfterLockTimeout)
                    } catch {
                        throw PostgresError(.cancelled, "interrupted while another session held a lock")
                    }
                }
            }
        }
        return applied
    }

    /// Applies a migration unless it is there already.
    ///
    /// - Returns: whether it was pending.
    private func apply(
        _ migration: Migration,
        on connection: PostgresConnection,
        _ deadline: Duration
    ) async throws(PostgresError) -> Bool {
        try await connection.transaction(deadline: deadline) { session throws(PostgresError) in
            try lock(session)
            guard try isPending(migration, session) else { return false }
            try session.execute(script: Self.limitLockWaits)
            try apply(migration, session)
            return true
        }
    }
}

// MARK: - Private parts

extension Migrator {
    private struct Statements {
        let tableExists = Statement("SELECT to_regclass($1) IS NOT NULL")
        let lock = Statement("SELECT pg_advisory_xact_lock(hashtextextended('\(Migrator.lockPrefix)' || $1, 0))")
        let checksums = Statement(
            """
            SELECT encode(sha256(convert_to(t.sql, 'UTF8')), 'hex')
            FROM unnest($1) WITH ORDINALITY AS t (sql, place) ORDER BY t.place
            """
        )
        let applied: Statement
        let record: Statement

        init(table: String) {
            applied = Statement("SELECT number, name, checksum, applied_at FROM \(table) ORDER BY number")
            record = Statement(
                """
                INSERT INTO \(table) (number, name, checksum)
                VALUES ($1, $2, encode(sha256(convert_to($3, 'UTF8')), 'hex'))
                """
            )
        }
    }

    /// What is locked, before the quoted name of the schema.
    static let lockPrefix = "schema_migrations of "
    /// How long other sessions have the tables to themselves before the next attempt.
    private static let pauseAfterLockTimeout = Duration.seconds(1)
    /// How long a migration waits for one lock: every statement that needs the table waits behind it for as long. The lock
    /// among migrators, which stops nothing else, is waited for without a limit before this is set.
    static let limitLockWaits = "SET LOCAL lock_timeout = '2s'"
    /// Waiting for another migrator, and the work itself, may take longer than a daemon's statements. How dates are
    /// written, where days begin and which schemas are searched must not depend on the session.
    static let localSettings = """
        SET LOCAL search_path = pg_catalog, pg_temp; \
        SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; \
        SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL TimeZone = 'UTC'
        """

    private static func quoted(_ name: String) -> String {
        "\"" + name.split(separator: "\"", omittingEmptySubsequences: false).joined(separator: "\"\"") + "\""
    }

    /// One migrator at a time.
    private func lock(_ session: borrowing Session) throws(PostgresError) {
        try session.execute(script: Self.localSettings)
        _ = try session.execute(statements.lock, Binds { $0.append(schema) })
    }

    private func tableExists(_ session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(statements.tableExists, Binds { $0.append(table) }).bool(0, 0)
    }

    private func createTable(_ session: borrowing Session) throws(PostgresError) {
        try session.execute(script: tableDefinition)
    }

    /// The schema, if it is not there, and in it the table of what was applied.
    var tableDefinition: String {
        """
        CREATE SCHEMA IF NOT EXISTS \(schema);
        CREATE TABLE \(table) (
            number integer PRIMARY KEY CONSTRAINT schema_migrations_number_positive CHECK (number > 0),
            name text NOT NULL,
            checksum text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        );
        COMMENT ON TABLE \(table) IS 'Migrations that this database has, in the order of their numbers.';
        COMMENT ON COLUMN \(table).checksum IS 'SHA-256 of the text that was applied, in hexadecimal.';
        """
    }

    /// Whether the migration is the next to apply; an error if the database is not what the migrations make of it.
    private func isPending(_ migration: Migration, _ session: borrowing Session) throws(PostgresError) -> Bool {
        var isPending = false
        for status in try self.status(in: session) {
            let title = "migration \(status.number) (\(status.name))"
            switch status.state {
            case .applied where isPending:
                throw PostgresError(
                    .migration,
                    "\(title) was applied before migration \(migration.number); restore the missing record"
                )
            case .applied:
                continue
            case .pending:
                isPending = isPending || status.number == migration.number
            case .changed:
                throw PostgresError(
                    .migration,
                    "\(title) is not the text that was applied; restore it and put the change into a migration of its own"
                )
            case .unknown:
                throw PostgresError(
                    .migration,
                    "the database has \(title), which this version does not know; use a later version"
                )
            }
        }
        return isPending
    }

    private func apply(_ migration: Migration, _ session: borrowing Session) throws(PostgresError) {
        do throws(PostgresError) {
            try session.execute(script: migration.sql)
        } catch {
            guard error.code == .server else { throw error }
            throw PostgresError(
                .migration,
                "migration \(migration.number) (\(migration.name)) failed: \(error)",
                sqlState: error.sqlState
            )
        }
        _ = try session.execute(
            statements.record,
            Binds {
                $0.append(Int32(clamping: migration.number))
                $0.append(migration.name)
                $0.append(migration.sql)
            }
        )
    }
}
