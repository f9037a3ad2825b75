import AccountStore
import AppleTokens
import Basics
import JOSE
import Postgres
import Schema
import Synchronization
import Terminal

extension Invocation {
    /// Lends the configured database, with the schema of this binary and one connection, to `body`.
    func withDatabase<Value>(_ body: (ConnectionPool) async throws -> Value) async throws -> Value {
        let pool = ConnectionPool(try configuration.connectionSettings(), maximum: 1)
        return try await withCleanup(pool.close) {
            try await SchemaState.read(pool).check()
            return try await body(pool)
        }
    }

    /// - Throws: what `body` throws. Any error of it that is not PostgreSQL's leaves the transaction intact.
    func read<Value: Sendable>(_ body: @Sendable (borrowing Session) throws -> Value) async throws -> Value {
        try await withDatabase { pool in
            try await pool.transaction(.repeatableRead) { session throws(PostgresError) -> Result<Value, any Error> in
                do {
                    return .success(try body(session))
                } catch let error as PostgresError {
                    throw error
                } catch {
                    return .failure(error)
                }
            }.get()
        }
    }

    func write<Value: Sendable>(
        _ body: @Sendable (borrowing Session) throws(PostgresError) -> Value
    ) async throws -> Value {
        try await withDatabase { try await $0.transaction(.readCommitted, body) }
    }
}

extension ConnectionPool {
    /// Runs a transaction that may write.
    ///
    /// - Throws: what `body` throws, of any type; the transaction is then rolled back.
    func change<Value: Sendable>(
        rollingBack: Bool = false,
        _ body: @Sendable (borrowing Session) throws -> Value
    ) async throws -> Value {
        // A session passes on only errors of PostgreSQL.
        let result = Mutex<Result<Value, any Error>?>(nil)
        do {
            return try await transaction(.readCommitted) { session throws(PostgresError) in
                do {
                    let value = try body(session)
                    guard rollingBack else { return value }
                    result.withLock { $0 = .success(value) }
                } catch let error as PostgresError {
                    throw error
                } catch {
                    result.withLock { $0 = .failure(error) }
                }
                throw PostgresError(.usage, "the transaction is rolled back")
            }
        } catch {
            guard let result = result.withLock({ $0 }) else { throw error }
            return try result.get()
        }
    }
}

/// The migrations of a database compared with the migrations of this binary.
struct SchemaState: Sendable, CommandOutput {
    /// Every migration that the binary or the database knows, in order.
    let migrations: [MigrationStatus]

    static func read(_ settings: ConnectionSettings) async throws(PostgresError) -> SchemaState {
        let connection = try await PostgresConnection.connect(settings)
        let state = SchemaState(migrations: try await migrator().status(on: connection))
        await connection.close()
        return state
    }

    static func read(_ pool: ConnectionPool) async throws(PostgresError) -> SchemaState {
        let migrations = try await pool.transaction(.repeatableRead) { session throws(PostgresError) in
            try migrator().status(in: session)
        }
        return SchemaState(migrations: migrations)
    }

    /// - Parameters:
    ///   - onLockWait: called when a migration is repeated because another session holds a lock.
    ///   - onApplied: called after each migration's commit.
    static func migrate(
        _ settings: ConnectionSettings,
        onLockWait: (Migrator.LockWait) -> Void = { _ in },
        onApplied: (Migration) -> Void = { _ in }
    ) async throws(PostgresError) -> [Migration] {
        let connection = try await PostgresConnection.connect(settings)
        let applied = try await migrator().up(on: connection, onLockWait: onLockWait, onApplied: onApplied)
        await connection.close()
        return applied
    }

    static func migrator() throws(PostgresError) -> Migrator {
        try Migrator(Schema.migrations, schema: Schema.name)
    }

    /// Refuses a schema of another version, in which reads and writes of this binary may be wrong.
    func check() throws(CommandFailure) {
        if let problem { throw CommandFailure(.configuration, problem) }
    }

    /// The reason why siwad can't use this schema, with the next step; nil if it can.
    var problem: String? {
        let pending = migrations.filter { $0.state == .pending }
        let install = "install the siwad that migrated it"
        if let unknown = migrations.first(where: { $0.state == .unknown }) {
            return "the database is newer than this siwad (migration \(unknown.number) \(unknown.name)): \(install)"
        }
        if let changed = migrations.first(where: { $0.state == .changed }) {
            let migration = "migration \(changed.number) \(changed.name)"
            return "\(migration) in the database is not the one of this siwad: \(install)"
        }
        if pending.isEmpty { return nil }
        if pending.count == migrations.count { return "the database is not migrated: \(Self.nextStep)" }
        return "the database misses \(pending.count) of \(migrations.count) migrations: \(Self.nextStep)"
    }

    /// The role of the daemon lacks this right.
    static var nextStep: String { "run \(nextCommand("migrate")) as a role that may create the schema" }

    func lines(style: OutputStyle) -> [String] { Self.columns.table(of: migrations).lines(style: style) }

    var json: [JSONText] { Self.columns.objects(of: migrations) }

    private static var columns: [Column<MigrationStatus>] {
        @Sendable func appliedAt(_ migration: MigrationStatus) -> WallTime? {
            migration.appliedAt.map { WallTime(microseconds: $0.microseconds) }
        }
        return [
            .init("number", \.number, "NUMBER", .right),
            .init("name", \.name, "NAME", .cutEnd(minimum: 8)),
            .init("state", \.state.rawValue, "STATE") {
                Table.Cell($0.state.rawValue, color: $0.state == .applied ? .green : .yellow)
            },
            .init("applied_at", appliedAt, "APPLIED (UTC)") { Table.Cell(appliedAt($0)?.secondText) },
        ]
    }
}

/// Compares the schema with the one that a running daemon started on, like ``SchemaState`` but with one short query.
enum SchemaVersion: Sendable, Equatable {
    case current
    /// All migrations of this binary and later ones.
    case newer
    /// Another schema; the reason, with the next step.
    case unfit(String)

    static func read(in session: borrowing Session) throws(PostgresError) -> SchemaVersion {
        do {
            return SchemaVersion(recorded: try SchemaCatalog.recordedChecksums(in: session))
        } catch {
            guard error.sqlState == .undefinedTable else { throw error }
            return .unfit("the database is not migrated: run siwad migrate")
        }
    }

    /// - Parameter recorded: the checksums of the applied migrations by number.
    init(recorded: [Int: String]) {
        let missing = Self.checksums.keys.count { recorded[$0] == nil }
        if missing > 0 {
            self = .unfit("the database misses \(missing) of \(Self.checksums.count) migrations: run siwad migrate")
        } else if let changed = Self.checksums.filter({ recorded[$0.key] != $0.value }).keys.min() {
            self = .unfit("migration \(changed) in the database is not the one of this siwad")
        } else {
            self = recorded.count > Self.checksums.count ? .newer : .current
        }
    }

    static let checksums = Dictionary(
        uniqueKeysWithValues: Schema.migrations.map { ($0.number, checksum($0.sql)) }
    )

    /// SHA-256 in hexadecimal, as the migrator records it.
    static func checksum(_ text: String) -> String {
        SHA256.digest(Array(text.utf8).span).hexadecimal
    }
}
