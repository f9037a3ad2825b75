import JOSE
import Postgres
import Schema

/// Whether a database still has the schema that a running daemon started on: what ``SchemaState`` says, at the price of one
/// short query.
enum SchemaVersion: Sendable, Equatable {
    /// The schema of this binary.
    case current
    /// That, and more that a later one brought.
    case newer
    /// Another one; why, with the next step.
    case unfit(String)

    /// Asks the database.
    static func read(in session: borrowing Session) throws(PostgresError) -> SchemaVersion {
        var recorded: [Int: String] = [:]
        do {
            let rows = try session.execute(statement)
            for row in 0..<rows.count { recorded[Int(try rows.int32(row, 0))] = try rows.string(row, 1) }
        } catch {
            guard error.sqlState == .undefinedTable else { throw error }
            return .unfit("the database is not migrated: run siwad migrate")
        }
        return SchemaVersion(recorded: recorded)
    }

    /// Compares the checksums of what was applied, by number, with those of this binary.
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

    /// Of each migration's text, by its number.
    static let checksums: [Int: String] = {
        var checksums: [Int: String] = [:]
        for migration in Schema.migrations { checksums[migration.number] = checksum(migration.sql) }
        return checksums
    }()

    /// SHA-256 of a text in hexadecimal, as the migrator records it.
    static func checksum(_ text: String) -> String {
        SHA256.digest(Array(text.utf8).span).map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }

    private static let statement = Statement(once: "SELECT number, checksum FROM \(Schema.name).schema_migrations")
}
