/// How the objects of a database differ from those that the migrations make.
package struct SchemaDrift: Sendable, Equatable {
    /// What should be there and isn't; what belongs to a missing table or view is left out.
    package let missing: [SchemaCatalog.Object]
    /// What is there, but otherwise.
    package let changed: [SchemaCatalog.Object]
    /// What is there, and that siwad knows nothing of.
    package let foreign: [SchemaCatalog.Object]

    /// The difference. PostgreSQL writes the bodies of views and of SQL functions in each major version as it likes: they
    /// are compared only where it is the same one.
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

    /// Whether nothing that siwad relies on differs.
    package var isNone: Bool { missing.isEmpty && changed.isEmpty }
}

extension SchemaCatalog.Object {
    /// Whether it only says what is inside of another object.
    fileprivate var isBody: Bool { kind.hasSuffix(" body") }
}
