import LocalPostgres
import Postgres

/// The one cluster of a test process: started when the first test wants a database, gone with the process.
actor TestCluster {
    static let shared = TestCluster()

    // Kept as tasks so that whoever asks while one is under way waits for the same; each is awaited by those who ask.
    private var starting: Task<LocalCluster, any Error>?
    private var templates: [String: Task<Void, any Error>] = [:]
    private var administration: ConnectionPool?
    private var databaseCount = 0

    /// How to connect to a database of the cluster.
    func conninfo(database: String) async throws -> String {
        try await cluster().conninfo(database: database)
    }

    /// Makes a database that begins as the template.
    func createDatabase(_ template: DatabaseTemplate) async throws -> String {
        try await prepare(template)
        databaseCount += 1
        let name = "test_\(databaseCount)"
        try await administer("CREATE DATABASE \(name) TEMPLATE \(Self.name(of: template))")
        return name
    }

    /// Drops a database and ends its connections.
    func drop(_ name: String) async {
        // The cluster goes with the process, so a database that cannot be dropped costs some room at most.
        try? await administer("DROP DATABASE IF EXISTS \(name) WITH (FORCE)")
    }

    private func cluster() async throws -> LocalCluster {
        if let starting { return try await starting.value }
        let task = Task {
            var options = LocalCluster.Options()
            options.maximumConnections = 200
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
