import AppleSimulator
import FoundationEssentials
import LocalPostgres
import Postgres
import Settings
import Terminal

/// What `siwad dev` keeps in `.siwad`: a PostgreSQL cluster, the key of a simulated Apple, a configuration file.
struct DevelopmentPlace {
    /// The developer team and the two app groups that are served unless `SIWAD_APPS` names others.
    static let apps = "A1B2C3D4E5/com.example.app+com.example.web,A1B2C3D4E5/com.example.notes"
    private static let name = "siwad"

    /// The absolute path of `.siwad`.
    let directory: String
    /// The Apple that signs.
    let apple: SimulatedApple
    /// The server, until ``close()``.
    private let cluster: LocalCluster

    /// Opens the place in the working directory, made where it isn't there, and starts its PostgreSQL.
    static func open() async throws -> DevelopmentPlace {
        let directory = FileManager.default.currentDirectoryPath + "/.siwad"
        let keys = KeyFiles(directory: directory + "/apple")
        let apple = try keys.create() ?? KeyFiles.apple(keyFile: keys.key, issuer: SimulatedApple.appleIssuer)
        let cluster = try await LocalCluster.start(at: directory + "/postgres")
        let place = DevelopmentPlace(directory: directory, apple: apple, cluster: cluster)
        do {
            try await place.prepareDatabase()
        } catch {
            await place.close()
            throw error
        }
        return place
    }

    /// Stops PostgreSQL.
    func close() async {
        await cluster.stop()
    }

    /// How to connect to the database, as the role that owns it. A later keyword wins (libpq, "Connection Strings").
    var conninfo: String { cluster.conninfo(database: Self.name) + " user=\(Self.name)" }

    /// The settings that the place decides.
    var flags: [SettingKey: String] {
        [.databaseURL: conninfo, .keysURL: "file://\(directory)/apple/keys.json"]
    }

    /// Writes `siwad.yaml`, with which the operator's commands find the same database and keys.
    func writeConfiguration(apps: String) throws {
        let values = [("database_url", conninfo), ("apps", apps), ("keys_url", flags[.keysURL] ?? "")]
        let lines = values.map { name, value in "\(name): \(JSONText.string(value).line)\n" }
        let text = "# Written by siwad dev at every start, for siwad … --config .siwad/siwad.yaml\n" + lines.joined()
        try NewFile.replace(directory + "/siwad.yaml", mode: 0o600, Array(text.utf8))
    }

    /// Makes the role and the database, and a link to the directory of the socket that is always at the same place.
    private func prepareDatabase() async throws {
        let settings = try ConnectionSettings(conninfo: cluster.conninfo(), applicationName: "siwad dev")
        let connection = try await PostgresConnection.connect(settings)
        let socket = try await connection.withSession { session throws(PostgresError) in
            // A private cluster is the one place where siwad plays the administrator.
            if try session.execute(Statement(once: "SELECT FROM pg_roles WHERE rolname = 'siwad'")).isEmpty {
                try session.execute(script: "CREATE ROLE siwad LOGIN SUPERUSER")
            }
            if try session.execute(Statement(once: "SELECT FROM pg_database WHERE datname = 'siwad'")).isEmpty {
                try session.execute(script: "CREATE DATABASE siwad OWNER siwad")
            }
            return try session.execute(Statement(once: "SHOW unix_socket_directories")).string(0, 0)
        }
        await connection.close()
        let link = directory + "/run"
        // What is not there can't be removed, and that is as good.
        try? FileManager.default.removeItem(atPath: link)
        do {
            try FileManager.default.createSymbolicLink(atPath: link, withDestinationPath: socket)
        } catch {
            throw CommandFailure(.failed, "\(link): can't be made: remove it, or start in another directory")
        }
    }
}
