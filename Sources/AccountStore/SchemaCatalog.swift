import AppleTokens
package import Postgres
import Schema

/// The objects of the schema `siwa`, as PostgreSQL's catalogs describe them.
package struct SchemaCatalog: Sendable, Equatable {
    /// One object.
    package struct Object: Sendable, Hashable, Comparable, CustomStringConvertible {
        /// `table`, `column`, `constraint`, `index`, `trigger`, `domain`, `function`, `view`, `view body`, `function body`.
        package let kind: String
        /// Its name within the schema: `accounts.email`.
        package let name: String

        /// `column accounts.email`
        package var description: String { "\(kind) \(name)" }

        /// By name, then kind.
        package static func < (one: Object, other: Object) -> Bool {
            (one.name, one.kind) < (other.name, other.kind)
        }
    }

    /// The major version of PostgreSQL that described them.
    package let postgresVersion: Int
    /// What each of them is.
    package let definitions: [Object: String]

    /// The catalog that the migrations of this binary make.
    package static let expected = SchemaCatalog(text: Schema.catalog)

    /// Reads the catalog of a database. Call it in a transaction.
    package init(readFrom transaction: borrowing Session) throws(PostgresError) {
        // Names are written out where the path doesn't lead to them.
        try transaction.execute(script: "SET LOCAL search_path = pg_catalog")
        let rows = try transaction.execute(Self.read)
        var definitions: [Object: String] = [:]
        for row in 0..<rows.count {
            let object = Object(kind: try rows.string(row, 0), name: try rows.string(row, 1))
            definitions[object] = try rows.string(row, 2)
        }
        self.definitions = definitions
        postgresVersion = Int(try transaction.execute(Self.version).int32(0, 0)) / 10_000
    }

    /// Reads what ``text`` writes.
    package init(text: String) {
        var version = 0
        var definitions: [Object: String] = [:]
        for line in text.split(separator: "\n") {
            let parts = line.split(separator: "\t", omittingEmptySubsequences: false).map(String.init)
            if parts.count == 3 { definitions[Object(kind: parts[0], name: parts[1])] = parts[2] }
            if parts.count == 2, parts[0] == "postgres" { version = Int(parts[1]) ?? 0 }
        }
        self.definitions = definitions
        postgresVersion = version
    }

    /// A line for each object, in order, below the version of PostgreSQL.
    package var text: String {
        let lines = definitions.sorted { $0.key < $1.key }.map { "\($0.key.kind)\t\($0.key.name)\t\($0.value)\n" }
        return "postgres\t\(postgresVersion)\n" + lines.joined()
    }

    private static let version = Statement(once: "SELECT current_setting('server_version_num')::integer")

    /// The partitions of the months are one object each per index: only if all of them have it, it is what it should be.
    /// Definitions are PostgreSQL's own words, except for bodies, of which a digest will do.
    private static let read = Statement(once: String(sql: PackageResources.schema_catalog_sql))
}
