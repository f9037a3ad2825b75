import Postgres
import TestSupport

/// The daemon's own role in a test's database, with the rights that install.md grants, so that PostgreSQL can be made to refuse
/// it while the test looks on.
struct DaemonRole {
    private let name: String
    private let database: TestDatabase
    private let connection: PostgresConnection
    /// How the daemon connects.
    let settings: ConnectionSettings

    /// Runs a test with the role.
    static func with<R>(
        _ database: TestDatabase,
        lockTimeout: Duration = .seconds(10),
        _ body: (DaemonRole) async throws -> R
    ) async throws -> R {
        let role = try await DaemonRole(database, lockTimeout)
        let result: Result<R, any Error>
        do {
            result = .success(try await body(role))
        } catch {
            result = .failure(error)
        }
        try await role.run("DROP OWNED BY \(role.name)")
        try await role.run("DROP ROLE \(role.name)")
        await role.connection.close()
        return try result.get()
    }

    private init(_ database: TestDatabase, _ lockTimeout: Duration) async throws {
        name = "daemon_of_\(database.name)"
        self.database = database
        connection = try await PostgresConnection.connect(database.settings)
        var settings = try ConnectionSettings(
            conninfo: "\(database.conninfo) user=\(name)",
            applicationName: "tests"
        )
        settings.lockTimeout = lockTimeout
        self.settings = settings
        try await run(
            """
            CREATE ROLE \(name) LOGIN;
            GRANT USAGE ON SCHEMA siwa TO \(name);
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA siwa TO \(name);
            ALTER DEFAULT PRIVILEGES IN SCHEMA siwa GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO \(name);
            """
        )
    }

    /// Ends its connections and lets it make no others: PostgreSQL is away.
    func shutOut() async throws {
        try await run("ALTER ROLE \(name) NOLOGIN")
        try await endConnections()
    }

    /// Lets it in again.
    func letIn() async throws {
        try await run("ALTER ROLE \(name) LOGIN")
    }

    /// Lets it have so many connections; -1 is any number.
    func limitConnections(to count: Int) async throws {
        try await run("ALTER ROLE \(name) CONNECTION LIMIT \(count)")
        try await endConnections()
    }

    /// Has the server be read-only for it, as after a failover to a standby.
    func setReadOnly(_ isReadOnly: Bool) async throws {
        try await run("ALTER ROLE \(name) SET default_transaction_read_only = \(isReadOnly ? "on" : "off")")
        try await endConnections()
    }

    /// Takes or gives a right that the storing of notifications needs.
    func setMayInsert(_ mayInsert: Bool) async throws {
        let change = mayInsert ? ("GRANT", "TO") : ("REVOKE", "FROM")
        try await run("\(change.0) INSERT ON siwa.account_changes \(change.1) \(name)")
    }

    private func endConnections() async throws {
        try await run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '\(name)'")
    }

    private func run(_ script: String) async throws {
        try await connection.withSession { session throws(PostgresError) in try session.execute(script: script) }
    }
}
