package import Postgres

/// A database of one test's own, in the cluster of this test process.
package struct TestDatabase: Sendable {
    /// Its name in the cluster.
    package let name: String
    /// How to connect to it, as superuser.
    package let conninfo: String
    /// The conninfo as settings; limits are the package's defaults.
    package let settings: ConnectionSettings

    /// Runs a test with a database of its own, which is dropped afterwards, connections or not.
    package static func with<R>(
        _ template: DatabaseTemplate = .empty,
        _ body: (TestDatabase) async throws -> R
    ) async throws -> R {
        let database = try await create(template)
        do {
            let result = try await body(database)
            await TestCluster.shared.drop(database.name)
            return result
        } catch {
            await TestCluster.shared.drop(database.name)
            throw error
        }
    }

    /// A database that stays until the process ends, for a suite to share.
    package static func create(_ template: DatabaseTemplate = .empty) async throws -> TestDatabase {
        let name = try await TestCluster.shared.createDatabase(template)
        return try await named(name)
    }

    /// A pool of connections to it.
    package func pool(maximum: Int = 4) -> ConnectionPool {
        ConnectionPool(settings, maximum: maximum)
    }

    static func named(_ name: String) async throws -> TestDatabase {
        let conninfo = try await TestCluster.shared.conninfo(database: name)
        let settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        return TestDatabase(name: name, conninfo: conninfo, settings: settings)
    }
}
