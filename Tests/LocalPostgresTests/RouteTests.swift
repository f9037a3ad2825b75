import LocalPostgres
import Postgres
import TestSupport
import Testing

@Suite("The route of a connection", .timeLimit(.minutes(5)))
struct RouteTests {
    private func route(_ conninfo: String) async throws -> Route {
        let settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        let connection = try await PostgresConnection.connect(settings)
        let route = try await connection.withSession { session throws(PostgresError) in session.route }
        await connection.close()
        return route
    }

    @Test("No address is taken from the settings where the connection leads elsewhere.")
    func address() async throws {
        try await TestDatabase.with { database in
            let socket = try await route(database.conninfo)
            #expect(socket.address == nil && socket.isLocal)
        }
        let (cluster, port) = try await startOnFreePort()
        let place = "port=\(port) user=postgres dbname=postgres"
        let direct = try await route("host=127.0.0.1 \(place) sslmode=disable")
        #expect(direct == Route(address: "127.0.0.1", sslMode: "disable"))
        let named = try await route("host=db.example.com hostaddr=127.0.0.1 \(place)")
        #expect(named == Route(address: "127.0.0.1", sslMode: "prefer"))
        await cluster.stop()
    }

    /// Another process may take a port before the server does: then the next one is tried.
    private func startOnFreePort() async throws -> (LocalCluster, UInt16) {
        var options = LocalCluster.Options()
        var attempts = 5
        while true {
            let port = try SilentServer().port
            options.port = port
            do {
                return (try await LocalCluster.startTemporary(options), port)
            } catch let error as LocalPostgresError where error.message.contains("TCP/IP") && attempts > 0 {
                attempts -= 1
            }
        }
    }
}
