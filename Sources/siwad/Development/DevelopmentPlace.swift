import AppleSimulator
import FoundationEssentials
import Glibc
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
    ///
    /// - Parameter issuer: what the simulated Apple writes into `iss`.
    /// - Throws: `CommandFailure` where another `siwad dev` has it.
    static func open(issuer: String) async throws -> DevelopmentPlace {
        let directory = FileManager.default.currentDirectoryPath + "/.siwad"
        try NewFile.makeDirectory(directory)
        try lock(directory + "/lock")
        let keys = KeyFiles(directory: directory + "/apple")
        _ = try keys.create()
        let apple = try KeyFiles.apple(keyFile: keys.key, issuer: issuer)
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

    /// Where the cluster is, for the reader: elsewhere where PostgreSQL's user can't enter the working directory.
    var clusterDirectory: String {
        cluster.directory == directory + "/postgres" ? ".siwad/postgres" : cluster.directory
    }

    /// The directories that hold it all, for the reader.
    var directories: String {
        cluster.directory.hasPrefix(directory + "/") ? ".siwad" : ".siwad and \(cluster.directory)"
    }

    /// How to connect to the database, as the role that owns it. A later keyword wins (libpq, "Connection Strings").
    var conninfo: String { cluster.conninfo(database: Self.name) + " user=\(Self.name)" }

    /// The settings that the place decides.
    var flags: [SettingKey: String] {
        [.databaseURL: conninfo, .keysURL: "file://\(directory)/apple/keys.json"]
    }

    /// Writes `siwad.yaml`, with which the operator's commands find the same database, keys and endpoints, and simulate the
    /// same Apple.
    ///
    /// - Parameter listening: the addresses of the endpoints.
    func writeConfiguration(_ configuration: Configuration, listening: [SettingKey: String]) throws {
        var ours = flags.merging(listening) { _, bound in bound }
        ours[.issuer] = apple.issuer
        let keys: [SettingKey] = [
            .databaseURL, .apps, .listen, .notificationPath, .operationsListen, .keysURL, .issuer,
        ]
        let lines = keys.compactMap { key in
            let text = ours[key] ?? configuration.entries.first { $0.key == key }?.text
            return text.map { "\(key.rawValue): \(JSONText.string($0).line)\n" }
        }
        let text = "# Written by siwad dev at every start, for siwad … --config .siwad/siwad.yaml\n" + lines.joined()
        try NewFile.replace(directory + "/siwad.yaml", mode: 0o600, Array(text.utf8))
    }

    /// Takes the place for this process: the lock goes with it, however it ends.
    private static func lock(_ path: String) throws {
        let descriptor = Glibc.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else {
            let cause = "\(path): \(String(cString: strerror(errno)))"
            throw CommandFailure(.failed, cause: cause, nextStep: "remove .siwad, or start in another directory")
        }
        guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else {
            Glibc.close(descriptor)
            throw CommandFailure(
                .failed,
                cause: "siwad dev is running in this directory already",
                nextStep: "use that one, end it with Ctrl-C, or start in another directory"
            )
        }
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
