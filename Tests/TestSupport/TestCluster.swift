import LocalPostgres
package import Postgres

/// The cluster of a test process, started for the first test that needs a database. It ends with the process.
actor TestCluster {
    static let shared = TestCluster()

    // Tasks, so that concurrent callers wait for the same one. Every caller awaits its task.
    private var starting: Task<LocalCluster, any Error>?
    private var templates: [String: Task<Void, any Error>] = [:]
    private var administration: ConnectionPool?
    private var databaseCount = 0

    func conninfo(database: String) async throws -> String {
        try await cluster().conninfo(database: database)
    }

    /// Creates a database from the template.
    func createDatabase(_ template: DatabaseTemplate) async throws -> String {
        try await prepare(template)
        databaseCount += 1
        let name = "test_\(databaseCount)"
        try await administer("CREATE DATABASE \(name) TEMPLATE \(Self.name(of: template))")
        return name
    }

    /// Drops a database and ends its connections.
    func drop(_ name: String) async {
        // The cluster ends with the process, so a database that cannot be dropped only takes space until then.
        try? await administer("DROP DATABASE IF EXISTS \(name) WITH (FORCE)")
    }

    private func cluster() async throws -> LocalCluster {
        if let starting { return try await starting.value }
        let task = Task {
            var options = LocalCluster.Options()
            options.maximumConnections = 200
            options.settings = ["max_prepared_transactions": "20"]
            return try await LocalCluster.startTemporary(options)
        }
        starting = task
        return try await task.value
    }

    private func prepare(_ template: DatabaseTemplate) async throws {
        if let known = templates[template.name] { return try await known.value }
        let task = Task {
            let name = Self.name(of: template)
            try await administer("CREATE DATABASE \(name)")
            try await template.prepare(TestDatabase.named(name).settings)
        }
        templates[template.name] = task
        try await task.value
    }

    private func administer(_ statement: String) async throws {
        let settings = try ConnectionSettings(conninfo: await conninfo(database: "postgres"), applicationName: "tests")
        let pool = administration ?? ConnectionPool(settings, maximum: 4, acquireTimeout: .seconds(60))
        administration = pool
        try await pool.withSession(deadline: .seconds(60)) { session throws(PostgresError) in
            try session.execute(script: statement)
        }
    }

    private static func name(of template: DatabaseTemplate) -> String { "template_\(template.name)" }
}

/// The initial content of a test database. Each process prepares it once and then copies it.
package struct DatabaseTemplate: Sendable {
    /// Identifies the template: letters, digits and underscores.
    package let name: String
    let prepare: @Sendable (ConnectionSettings) async throws -> Void

    package init(_ name: String, prepare: @escaping @Sendable (ConnectionSettings) async throws -> Void) {
        self.name = name
        self.prepare = prepare
    }

    package static let empty = DatabaseTemplate("empty") { _ in }
}
