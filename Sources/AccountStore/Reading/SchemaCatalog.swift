import AppleTokens
package import Postgres
import Schema

/// The objects of the schema `siwa`, as PostgreSQL's catalogs describe them.
package struct SchemaCatalog: Sendable, Equatable {
    package struct Object: Sendable, Hashable, Comparable, CustomStringConvertible {
        /// `table`, `column`, `constraint`, `index`, `trigger`, `domain`, `type`, `function`, `view`, `view body`,
        /// `function body`.
        package let kind: String
        /// Its name within the schema: `accounts.email`.
        package let name: String

        package var description: String { "\(kind) \(name)" }

        package static func < (one: Object, other: Object) -> Bool {
            (one.name, one.kind) < (other.name, other.kind)
        }
    }

    /// The major version of PostgreSQL that wrote the definitions.
    package let postgresVersion: Int
    package let definitions: [Object: String]

    /// The catalog that the migrations of this binary create.
    package static let expected = SchemaCatalog(text: Schema.catalog)

    /// Reads the catalog of a database. Call it in a transaction.
    package init(readFrom transaction: borrowing Session) throws(PostgresError) {
        // With this path PostgreSQL qualifies all names of siwa in the definitions.
        try transaction.execute(script: "SET LOCAL search_path = pg_catalog")
        let rows = try transaction.execute(once: String(sql: PackageResources.schema_catalog_sql))
        let objects = try rows.decode { (kind: String, name: String, definition: String) in
            (Object(kind: kind, name: name), definition)
        }
        definitions = Dictionary(objects) { _, last in last }
        let version = try transaction.execute(once: "SELECT current_setting('server_version_num')::integer")
        postgresVersion = try version.value(0, 0) / 10_000
    }

    /// The checksums of the migrations that the database records, by number.
    ///
    /// - Throws: `undefinedTable` if the database is not migrated.
    package static func recordedChecksums(in session: borrowing Session) throws(PostgresError) -> [Int: String] {
        var recorded: [Int: String] = [:]
        let sql = "SELECT number, checksum FROM \(Schema.name).schema_migrations"
        let rows = try session.execute(Statement(once: sql))
        for row in 0..<rows.count { recorded[Int(try rows.int32(row, 0))] = try rows.string(row, 1) }
        return recorded
    }

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

    /// The version of PostgreSQL, then one line for each object.
    package var text: String {
        let lines = definitions.sorted { $0.key < $1.key }.map { "\($0.key.kind)\t\($0.key.name)\t\($0.value)\n" }
        return "postgres\t\(postgresVersion)\n" + lines.joined()
    }
}

/// The differences between the objects of a database and the objects that the migrations create.
package struct SchemaDrift: Sendable, Equatable {
    /// Objects that do not exist. Parts of a missing table or view are left out.
    package let missing: [SchemaCatalog.Object]
    package let changed: [SchemaCatalog.Object]
    /// Objects that siwad did not create.
    package let foreign: [SchemaCatalog.Object]

    /// Compares the bodies of views and SQL functions only if both catalogs have the same major version, because PostgreSQL
    /// writes them differently in each.
    package init(of actual: SchemaCatalog, from expected: SchemaCatalog) {
        let isSameVersion = actual.postgresVersion == expected.postgresVersion
        let missing = expected.definitions.keys.filter { actual.definitions[$0] == nil }
        let missingTables = Set(missing.filter { $0.kind == "table" || $0.kind == "view" }.map(\.name))
        self.missing = missing.filter { object in
            let owner = object.name.split(separator: ".").first.map(String.init) ?? ""
            return !object.isBody && (owner == object.name || !missingTables.contains(owner))
        }.sorted()
        changed = expected.definitions.compactMap { object, definition in
            guard let found = actual.definitions[object], found != definition else { return nil }
            return isSameVersion || !object.isBody ? object : nil
        }.sorted()
        foreign = actual.definitions.keys.filter { object in
            expected.definitions[object] == nil && !object.isBody
                && !object.name.split(separator: ".").starts(with: ["schema_migrations"])
        }.sorted()
    }

    /// True if no object that siwad needs is missing or changed.
    package var isNone: Bool { missing.isEmpty && changed.isEmpty }
}

extension SchemaCatalog.Object {
    fileprivate var isBody: Bool { kind.hasSuffix(" body") }
}
