import LocalPostgres
import TestSupport
import Testing

@testable import Postgres

@Suite("Server endpoint", .timeLimit(.minutes(5)))
struct ServerEndpointTests {
    private func endpoint(_ conninfo: String) async throws -> ServerEndpoint {
        let settings = try ConnectionSettings(conninfo: conninfo, applicationName: "tests")
        let connection = try await PostgresConnection.connect(settings)
        let endpoint = try await connection.withSession { session throws(PostgresError) in session.endpoint }
        await connection.close()
        return endpoint
    }

    @Test("The address is that of the connection, not the one in the settings.")
    func address() async throws {
        try await TestDatabase.with { database in
            let socket = try await endpoint(database.conninfo)
            #expect(socket.address == nil && socket.isLocal)
        }
        let (cluster, port) = try await startOnFreePort()
        let parameters = "port=\(port) user=postgres dbname=postgres"
        let direct = try await endpoint("host=127.0.0.1 \(parameters) sslmode=disable")
        #expect(direct == ServerEndpoint(address: "127.0.0.1", sslMode: "disable"))
        let named = try await endpoint("host=db.example.com hostaddr=127.0.0.1 \(parameters)")
        #expect(named == ServerEndpoint(address: "127.0.0.1", sslMode: "prefer"))
        await cluster.stop()
    }

    /// Tries another port if a process took the first one before the server.
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
