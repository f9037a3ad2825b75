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

    @Test(
        "If the first address of a name never answers, the next one is used.",
        arguments: ["any", "prefer-standby"]
    )
    func addresses(wanted: String) async throws {
        let (cluster, port) = try await startOnFreePort()
        let silent = try SilentServer(address: "127.0.0.2", port: port)
        var settings = try ConnectionSettings(
            conninfo: "host=db.example.com port=\(port) user=postgres dbname=postgres target_session_attrs=\(wanted)",
            applicationName: "tests"
        )
        settings.connectTimeout = .seconds(8)
        settings.resolve = { _ in ["127.0.0.2", "127.0.0.1"] }
        let connection = try await PostgresConnection.connect(settings)
        let endpoint = try await connection.withSession { session throws(PostgresError) in session.endpoint }
        #expect(endpoint.address == "127.0.0.1")
        await connection.close()
        // It never answered until here.
        #expect(silent.port == port)
        await cluster.stop()
    }

    @Test("A refusal that holds for every address of a name is final, and its error has the name.")
    func refusal() async throws {
        let (cluster, port) = try await startOnFreePort()
        var settings = try ConnectionSettings(
            conninfo: "host=db.example.com port=\(port) user=postgres dbname=missing",
            applicationName: "tests"
        )
        settings.resolve = { _ in ["127.0.0.1", "127.0.0.2"] }
        let misled = settings
        let error = await #expect(throws: PostgresError.self) { try await PostgresConnection.connect(misled) }
        #expect(error?.sqlState?.rawValue == "3D000")
        #expect(error?.description.contains(#"server at "db.example.com" (127.0.0.1), port"#) == true)
        #expect(error?.description.contains("127.0.0.2") == false)
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
