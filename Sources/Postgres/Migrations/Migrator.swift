/// One numbered, forward-only step of a schema.
package struct Migration: Sendable, Hashable {
    /// From 1.
    package let number: Int
    package let name: String
    /// Statements without transaction commands: they run in one transaction with the record of the migration.
    package let sql: String

    package init(number: Int, name: String, sql: String) {
        self.number = number
        self.name = name
        self.sql = sql
    }
}

/// The state of one migration in one database.
package struct MigrationStatus: Sendable, Hashable {
    package enum State: String, Sendable, CaseIterable {
        /// In the database, with the same text.
        case applied
        /// Not in the database yet.
        case pending
        /// In the database, with another text.
        case changed
        /// In the database only: a later version applied it.
        case unknown
    }

    package let number: Int
    /// From the migration, or from the database if it is unknown.
    package let name: String
    package let state: State
    /// By the database's clock.
    package let appliedAt: Timestamp?
}

/// Applies a list of migrations to a database, and reports their state.
///
/// `schema_migrations` records each applied migration with the SHA-256 of its text. A migration and its record are one
/// transaction under an advisory lock, so any number of processes may migrate concurrently.
package struct Migrator: Sendable {
    /// In the order of their numbers.
    package let migrations: [Migration]
    private let schema: String
    private let table: String

    /// - Parameter schema: the schema of the table `schema_migrations`, created if it does not exist.
    /// - Throws: `usage` unless the numbers are 1, 2, 3 …
    package init(_ migrations: [Migration], schema: String) throws(PostgresError) {
        guard migrations.map(\.number) == Array(1..<(migrations.count + 1)) else {
            throw PostgresError(.usage, "migrations must be numbered 1, 2, 3 … without a gap")
        }
        self.migrations = migrations
        self.schema = Self.quoted(schema, "\"")
        self.table = "\(self.schema).schema_migrations"
    }

    /// Every known migration and every migration in the database, in order. Changes nothing.
    package func status(on connection: PostgresConnection) async throws(PostgresError) -> [MigrationStatus] {
        try await connection.transaction(.repeatableRead) { session throws(PostgresError) in
            try status(in: session)
        }
    }

    package func status(in session: borrowing Session) throws(PostgresError) -> [MigrationStatus] {
        let checksums = Statement(
            once: """
                SELECT encode(sha256(convert_to(t.sql, 'UTF8')), 'hex')
                FROM unnest($1) WITH ORDINALITY AS t (sql, place) ORDER BY t.place
                """
        )
        let sums = try session.execute(checksums, Binds { $0.append(array: migrations.map(\.sql)) })
        var recorded: [Int: (name: String, checksum: String, at: Timestamp)] = [:]
        if try tableExists(session) {
            let rows = try session.execute(once: "SELECT number, name, checksum, applied_at FROM \(table)")
            let records = try rows.decode { (number: Int, name: String, checksum: String, at: Timestamp) in
                (number, (name, checksum, at))
            }
            recorded = Dictionary(uniqueKeysWithValues: records)
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

    /// An attempt to apply a migration that failed because of another session's locks. Another attempt follows.
    package struct LockWait: Sendable {
        package enum Holder: Sendable, Equatable {
            /// Another migrator, with the process of its session; nil if it has just ended.
            case migrator(process: Int32?)
            /// A session that uses what the migration changes.
            case session
        }

        package let migration: Migration
        package let holder: Holder
        /// The number of failed attempts, from 1.
        package let attempts: Int
        /// Since the first attempt began.
        package let elapsed: Duration
    }

    /// Applies pending migrations in order, each in its own transaction.
    ///
    /// A migration that waits for a lock blocks every later statement on the same table. So it waits for two seconds at
    /// most, lets those statements run, and tries again.
    ///
    /// - Parameters:
    ///   - deadline: for each migration, and for the wait for another migrator.
    ///   - patience: how long a migration is retried while other sessions interfere.
    ///   - onLockWait: called after each attempt that failed because of a lock or a deadlock.
    ///   - onApplied: called after each migration's commit.
    /// - Returns: the migrations that this call applied.
    /// - Throws: `migration` if the database has a migration that is unknown or has another text; `server` with
    ///   ``PostgresError/migration`` if one fails, with SQLSTATE 55P03 if it could not get a lock; `timedOut` if another
    ///   migrator does not end. Earlier migrations stay applied.
    @discardableResult
    package func up(
        on connection: PostgresConnection,
        deadline: Duration = .seconds(3600),
        patience: Duration = .seconds(600),
        onLockWait: (LockWait) -> Void = { _ in },
        onApplied: (Migration) -> Void = { _ in }
    ) async throws(PostgresError) -> [Migration] {
        var applied: [Migration] = []
        for migration in migrations {
            var start = ContinuousClock.now
            var attempts = 0
            var waitsForMigrator = false
            while true {
                do throws(PostgresError) {
                    if try await applyIfPending(migration, on: connection, deadline) {
                        applied.append(migration)
                        onApplied(migration)
                    }
                    break
                } catch {
                    let isMigrator = error.migration == nil
                    if isMigrator != waitsForMigrator {
                        (waitsForMigrator, start, attempts) = (isMigrator, .now, 0)
                    }
                    let elapsed = start.duration(to: .now)
                    let limit = isMigrator ? deadline : patience
                    let holder = try await holder(causing: error, isLast: elapsed >= limit, on: connection)
                    attempts += 1
                    onLockWait(LockWait(migration: migration, holder: holder, attempts: attempts, elapsed: elapsed))
                }
                try await pause()
            }
        }
        return applied
    }

    /// What holds the lock because of which an attempt failed.
    ///
    /// - Parameter isLast: no attempt follows.
    /// - Throws: `error` if no lock is its cause, or if it is the last; `timedOut` if another migrator does not end.
    private func holder(
        causing error: PostgresError,
        isLast: Bool,
        on connection: PostgresConnection
    ) async throws(PostgresError) -> LockWait.Holder {
        guard error.sqlState == .lockNotAvailable || error.isConflict else { throw error }
        guard error.migration == nil else {
            guard !isLast else { throw error }
            return .session
        }
        let process = try await lockHolder(on: connection)
        guard !isLast else {
            let place = process.map { ", process \($0) of PostgreSQL," } ?? ""
            throw PostgresError(.timedOut, "another migrator\(place) did not end in time")
        }
        return .migrator(process: process)
    }

    /// Other sessions can use the tables for this long.
    private func pause() async throws(PostgresError) {
        do {
            try await Task.sleep(for: .seconds(1))
        } catch {
            throw PostgresError(.cancelled, "interrupted while another session held a lock")
        }
    }

    /// The SQL that ``up(on:deadline:patience:onLockWait:onApplied:)`` would run, for another tool to execute: each migration
    /// in a transaction with its record, under the same lock. Afterwards `up` finds nothing to apply.
    ///
    /// - Parameters:
    ///   - done: the number of the last migration in the database; 0 if not even the table of migrations exists.
    ///   - checksum: returns the SHA-256 of a text, in hexadecimal.
    package func script(after done: Int = 0, checksum: (String) -> String) -> String {
        var parts = done > 0 ? [] : [transaction("The schema, and the record of its migrations", tableDefinition)]
        for migration in migrations where migration.number > done {
            let record = """
                INSERT INTO \(table) (number, name, checksum)
                VALUES (\(migration.number), \(Self.quoted(migration.name, "'")), '\(checksum(migration.sql))');
                """
            let body = [requirement(before: migration.number), migration.sql, record].joined(separator: "\n")
            parts.append(transaction("Migration \(migration.number): \(migration.name)", body))
        }
        return parts.joined(separator: "\n")
    }
}

// MARK: - Private parts

extension Migrator {
    /// The key of the advisory lock, before the quoted name of the schema.
    private static let lockPrefix = "schema_migrations of "
    /// How long a migration waits for one lock, because every statement that needs the table waits behind it. The advisory
    /// lock blocks nothing else: a script waits for it without a limit, and ``up`` uses the limit to report the wait.
    private static let limitLockWaits = "SET LOCAL lock_timeout = '2s'"
    /// Lets the server end the transaction of a process that was killed, instead of when its statement ends. Where the
    /// operating system can't report a closed connection, PostgreSQL refuses the setting.
    private static let watchClient = """
        DO $$ BEGIN
            PERFORM set_config('client_connection_check_interval', '2s', true);
        EXCEPTION WHEN invalid_parameter_value THEN NULL;
        END $$
        """
    /// Waiting for another migrator, and the work itself, may take longer than a daemon's statements. Date formats, the
    /// time zone and the search path must not depend on the session.
    private static let localSettings = """
        SET LOCAL search_path = pg_catalog, pg_temp; \
        SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; \
        SET LOCAL DateStyle = 'ISO, YMD'; SET LOCAL TimeZone = 'UTC'; \
        DO $$ BEGIN PERFORM set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout'; END $$
        """

    private static func quoted(_ text: String, _ quote: Character) -> String {
        "\(quote)" + text.flatMap { $0 == quote ? [$0, $0] : [$0] } + "\(quote)"
    }

    /// Lets one migrator run at a time.
    ///
    /// - Throws: `server` with SQLSTATE 55P03 while there is another one.
    private func lock(_ session: borrowing Session) throws(PostgresError) {
        try session.execute(script: "\(Self.localSettings); \(Self.watchClient); \(Self.limitLockWaits)")
        _ = try session.execute(
            once: "SELECT pg_advisory_xact_lock(hashtextextended('\(Self.lockPrefix)' || $1, 0))",
            schema
        )
        try session.execute(script: "SET LOCAL lock_timeout = 0")
    }

    /// The process of the server whose session holds the lock of ``lock(_:)``; nil if none does.
    private func lockHolder(on connection: PostgresConnection) async throws(PostgresError) -> Int32? {
        // One half of the key is in each of two columns (PostgreSQL documentation, "pg_locks").
        let holders = """
            SELECT pid FROM pg_catalog.pg_locks
            WHERE locktype = 'advisory' AND granted AND objsubid = 1
                AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
                AND ((classid::bigint << 32) | objid::bigint) = hashtextextended('\(Self.lockPrefix)' || $1, 0)
            """
        return try await connection.withSession { session throws(PostgresError) in
            let rows = try session.execute(once: holders, schema)
            return try rows.isEmpty ? nil : rows.int32(0, 0)
        }
    }

    private func tableExists(_ session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(once: "SELECT to_regclass($1) IS NOT NULL", table).bool(0, 0)
    }

    private var tableDefinition: String {
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

    /// Fails a transaction whose predecessor failed, because psql continues after an error unless ON_ERROR_STOP is set.
    private func requirement(before number: Int) -> String {
        guard number > 1 else { return "" }
        return """
            DO $$ BEGIN
                IF NOT EXISTS (SELECT FROM \(table) WHERE number = \(number - 1)) THEN
                    RAISE EXCEPTION 'migration \(number - 1) is not applied'
                        USING HINT = 'Run the whole script again from the first error on; set ON_ERROR_STOP in psql.';
                END IF;
            END $$;
            """
    }

    private func transaction(_ title: String, _ body: String) -> String {
        """
        -- \(title)

        BEGIN;
        \(Self.localSettings);
        DO $$ BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended(\(Self.quoted(Self.lockPrefix + schema, "'")), 0));
        END $$;
        \(Self.limitLockWaits);

        \(body)
        COMMIT;

        """
    }

    /// - Returns: false if the migration was applied before.
    private func applyIfPending(
        _ migration: Migration,
        on connection: PostgresConnection,
        _ deadline: Duration
    ) async throws(PostgresError) -> Bool {
        try await connection.transaction(deadline: deadline) { session throws(PostgresError) in
            try lock(session)
            if try !tableExists(session) { try session.execute(script: tableDefinition) }
            guard try isPending(migration, session) else { return false }
            try session.execute(script: Self.limitLockWaits)
            try apply(migration, session)
            return true
        }
    }

    /// Throws if the database is not in a state that these migrations produce.
    private func isPending(_ migration: Migration, _ session: borrowing Session) throws(PostgresError) -> Bool {
        var isPending = false
        for status in try self.status(in: session) {
            let fault: String
            switch status.state {
            case .applied where isPending:
                fault = "was applied before migration \(migration.number); restore the missing record"
            case .applied:
                continue
            case .pending:
                isPending = isPending || status.number == migration.number
                continue
            case .changed:
                fault = "is not the text that was applied; restore it and put the change into another migration"
            case .unknown:
                fault = "is in the database, but this version does not know it; use a later version"
            }
            throw PostgresError(.migration, "migration \(status.number) (\(status.name)) \(fault)")
        }
        return isPending
    }

    private func apply(_ migration: Migration, _ session: borrowing Session) throws(PostgresError) {
        do throws(PostgresError) {
            try session.execute(script: migration.sql)
            _ = try session.execute(
                once: """
                    INSERT INTO \(table) (number, name, checksum)
                    VALUES ($1, $2, encode(sha256(convert_to($3, 'UTF8')), 'hex'))
                    """,
                migration.number,
                migration.name,
                migration.sql
            )
        } catch {
            var failure = error
            failure.migration = "\(migration.number) (\(migration.name))"
            throw failure
        }
    }
}
