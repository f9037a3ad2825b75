import Basics
import AppleSimulator
import AppleTokens
import FoundationEssentials
import Glibc
import JOSE
import LocalPostgres
import Postgres
import Settings
import Terminal

/// The directory `.siwad` of `siwad dev`: a PostgreSQL cluster, the key of a simulated Apple, the key of its developers, a
/// configuration file.
struct DevelopmentPlace {
    /// A team and two app groups, served unless `SIWAD_APPS` is set.
    static let apps = "A1B2C3D4E5/com.example.app+com.example.web,A1B2C3D4E5/com.example.notes"
    /// The settings that name parts of the place. Values of the user have no effect.
    static let ownSettings: [SettingKey] = [
        .databaseURL, .keysURL, .appleURL, .appleKeys, .applicationListen, .applicationTLSCertificate,
        .applicationTLSKey, .sealingKeys, .applicationTokens,
    ]
    /// Relative to the working directory of `siwad dev`.
    static let configurationFile = ".siwad/siwad.yaml"
    private static let name = "siwad"
    private static let clientKeyID = "DEV4567890"

    /// Absolute.
    let directory: String
    let apple: SimulatedApple
    /// Signs the client secrets of all teams.
    private let clientKey: P256PrivateKey
    /// A line `NAME:BASE64`, as `siwad sealing new-key` prints it.
    let sealingKey: String
    private let cluster: LocalCluster

    /// Opens or creates `.siwad` in the working directory, which no other `siwad dev` may use, and starts its PostgreSQL.
    static func open(issuer: String) async throws -> DevelopmentPlace {
        let directory = FileManager.default.currentDirectoryPath + "/.siwad"
        try NewFile.makeDirectory(directory)
        try lock(directory + "/lock", "use that one, end it with Ctrl-C, or start in another directory")
        let keys = KeyFiles(directory: directory + "/apple")
        _ = try keys.create()
        let apple = try KeyFiles.apple(keyFile: keys.key, issuer: issuer)
        let sealingKey = try text(in: directory + "/sealing-keys") { try SealingKeys.newLine(name: "dev") + "\n" }
        let clientKey = try P256PrivateKey(
            pem: text(in: clientKeyFile(in: directory)) { try P256PrivateKey.generate().pem() }
        )
        let cluster = try await LocalCluster.start(at: directory + "/postgres")
        let place = DevelopmentPlace(
            directory: directory,
            apple: apple,
            clientKey: clientKey,
            sealingKey: sealingKey.filter { !$0.isNewline },
            cluster: cluster
        )
        do {
            try await place.prepareDatabase()
        } catch {
            await cluster.stop()
            throw error
        }
        return place
    }

    /// Deletes the database in `.siwad`, which no `siwad dev` may use. The key of the simulated Apple stays.
    ///
    /// - Returns: false if there is none.
    static func reset() async throws -> Bool {
        let directory = FileManager.default.currentDirectoryPath + "/.siwad"
        guard FileManager.default.fileExists(atPath: directory) else { return false }
        try lock(directory + "/lock", "end it with Ctrl-C first")
        return try await LocalCluster.remove(at: directory + "/postgres")
    }

    func close() async { await cluster.stop() }

    /// The cluster's directory as printed. It is outside `.siwad` if PostgreSQL's user can't enter the working directory.
    var clusterDirectory: String {
        cluster.directory == directory + "/postgres" ? ".siwad/postgres" : cluster.directory
    }

    /// Connects as the owner of the database. A later keyword wins (libpq, "Connection Strings").
    var conninfo: String { cluster.conninfo(database: Self.name) + " user=\(Self.name)" }

    /// The settings that name the parts of this place.
    ///
    /// - Parameters:
    ///   - appleURL: of the simulated Apple.
    ///   - ranges: addresses that may be called for endpoints, in addition to the loopback addresses of the demonstration.
    func flags(appleURL: String, teams: Set<TeamID>, allowing ranges: [AddressRange]) -> [SettingKey: String] {
        let allowed = ["127.0.0.0/8", "::1/128"] + ranges.map(\.description)
        let file = Self.clientKeyFile(in: directory)
        let keys = teams.map { "\($0)/\(Self.clientKeyID)=\(file)" }.sorted().joined(separator: ",")
        return [
            .databaseURL: conninfo, .keysURL: "\(appleURL)/auth/keys", .appleURL: appleURL, .appleKeys: keys,
            .deliveryAllow: allowed.uniqued().joined(separator: ","),
            .applicationListen: "unix:\(applicationSocketPath)",
        ]
    }

    /// The Unix socket of the application endpoint, relative to the working directory of `siwad dev`.
    static let applicationSocket = ".siwad/application.sock"

    /// In the directory, or where a link in the directory points, because the kernel allows only short paths (unix(7)).
    var applicationSocketPath: String {
        let path = directory + "/application.sock"
        return path.utf8.count < 108 ? path : cluster.socketDirectory + "/application.sock"
    }

    private static func clientKeyFile(in directory: String) -> String {
        "\(directory)/apple/AuthKey_\(clientKeyID).p8"
    }

    /// The simulated Apple with the client ids of these groups and the key of their teams.
    func tokenServer(_ groups: [AudienceMap.Group]) throws(JOSEError) -> TokenServer {
        TokenServer(
            apple: apple,
            others: try SimulatedApple.others(),
            clients: groups.flatMap { group in
                group.clients.map {
                    TokenServer.Client(id: $0.rawValue, team: group.team.rawValue, app: group.app.rawValue)
                }
            },
            secrets: ClientSecretCheck(
                keys: Set(groups.map(\.team)).map { team in
                    ClientSecretCheck.Key(team: team.rawValue, id: Self.clientKeyID, publicKey: clientKey.publicKey)
                }
            )
        )
    }

    /// What no flag may contain.
    var environment: [String: String] { [SettingKey.sealingKeys.environmentName: sealingKey] }

    /// Writes `siwad.yaml` with every setting that is not the default, so that the operator's commands use the same database,
    /// keys, endpoints and rules and simulate the same Apple.
    func writeConfiguration(_ configuration: Configuration, listening: [SettingKey: String]) throws {
        var ours = listening
        ours[.databaseURL] = conninfo
        ours[.issuer] = apple.issuer
        ours[.sealingKeys] = sealingKey
        let lines = configuration.entries.compactMap { entry in
            // Only this process logs as its user asked.
            let isSet = entry.origin != .unset && !entry.key.isSecret && ![.logLevel, .logFormat].contains(entry.key)
            let text = ours[entry.key] ?? (isSet ? entry.text : nil)
            return text.map { "\(entry.key.rawValue): \(JSONText.string($0).line)\n" }
        }
        let comment = "# Written by siwad dev at every start, for siwad … --config \(Self.configurationFile)\n"
        try NewFile.replace(directory + "/siwad.yaml", mode: 0o600, Array((comment + lines.joined()).utf8))
    }

    /// The text of a file, which is made if there is none.
    private static func text(in path: String, made: () throws -> String) throws -> String {
        if access(path, F_OK) != 0 { _ = try NewFile.create(path, mode: 0o600, Array(try made().utf8)) }
        do {
            return String(decoding: try readFile(atPath: path), as: UTF8.self)
        } catch {
            throw CommandFailure(
                .failed,
                "\(path): \(error.cause)",
                nextStep: "remove .siwad, or start in another directory"
            )
        }
    }

    private static func lock(_ path: String, _ step: String) throws {
        let descriptor = Glibc.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else {
            let cause = "\(path): \(String(cString: strerror(errno)))"
            throw CommandFailure(.failed, cause, nextStep: "remove .siwad, or start in another directory")
        }
        guard flock(descriptor, LOCK_EX | LOCK_NB) == 0 else {
            Glibc.close(descriptor)
            throw CommandFailure(.failed, "siwad dev is running in this directory already", nextStep: step)
        }
    }

    /// Creates role and database, and the link `run` to the directory of the socket.
    private func prepareDatabase() async throws {
        let settings = try ConnectionSettings(conninfo: cluster.conninfo(), applicationName: "siwad dev")
        let connection = try await PostgresConnection.connect(settings)
        let socket = try await connection.withSession { session throws(PostgresError) in
            // Only in its private cluster does siwad act as the administrator.
            if try session.execute(Statement(once: "SELECT FROM pg_roles WHERE rolname = 'siwad'")).isEmpty {
                try session.execute(script: "CREATE ROLE siwad LOGIN SUPERUSER")
            }
            if try session.execute(Statement(once: "SELECT FROM pg_database WHERE datname = 'siwad'")).isEmpty {
                try session.execute(script: "CREATE DATABASE siwad OWNER siwad")
            }
            return try session.execute(Statement(once: "SHOW unix_socket_directories")).string(0, 0)
        }
        await connection.close()
        try link("run", to: socket)
        if applicationSocketPath != directory + "/application.sock" {
            try link("application.sock", to: applicationSocketPath)
        }
    }

    private func link(_ name: String, to target: String) throws {
        let link = "\(directory)/\(name)"
        // The link may not exist.
        try? FileManager.default.removeItem(atPath: link)
        do {
            try FileManager.default.createSymbolicLink(atPath: link, withDestinationPath: target)
        } catch {
            throw CommandFailure(.failed, "\(link): can't be created: remove it, or start in another directory")
        }
    }
}

/// The key of a simulated Apple in a directory: `key.pem` and `keys.json`.
struct KeyFiles {
    let directory: String

    var key: String { directory + "/key.pem" }
    var keySet: String { directory + "/keys.json" }

    /// - Returns: nil if there is a key already. Nothing is changed then.
    func create() throws -> SimulatedApple? {
        try NewFile.makeDirectory(directory)
        guard access(key, F_OK) != 0 else { return nil }
        let apple = try SimulatedApple.generate()
        guard try NewFile.create(key, mode: 0o600, Array(try apple.key.pem().utf8)) else { return nil }
        let published = SimulatedApple.keySetJSON(of: try SimulatedApple.others() + [apple])
        try NewFile.replace(keySet, mode: 0o644, Array((published + "\n").utf8))
        return apple
    }

    static func apple(keyFile: String, issuer: String) throws -> SimulatedApple {
        let option = "--key \(Redaction.redacted(keyFile))"
        do {
            let pem = String(decoding: try readFile(atPath: keyFile), as: UTF8.self)
            return try SimulatedApple(key: RSAPrivateKey(pem: pem), issuer: issuer)
        } catch let error as FileReadingError {
            let step = error == .noFile ? "write one with siwad simulate keys --out DIR" : error.nextStep
            throw CommandFailure(.failed, "\(option): \(error.cause)", nextStep: step)
        } catch {
            throw CommandFailure(.failed, "\(option): \(error)")
        }
    }
}

/// Writes files atomically.
enum NewFile {
    static func makeDirectory(_ path: String) throws {
        do {
            try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
        } catch {
            let step = "choose another, or check the permissions"
            throw CommandFailure(.failed, "\(path): can't be created as a directory", nextStep: step)
        }
    }

    /// - Returns: false if the file exists. It stays as it is.
    static func create(_ path: String, mode: mode_t, _ bytes: [UInt8]) throws -> Bool {
        let temporary = try temporaryFile(for: path, mode: mode, bytes)
        defer { unlink(temporary) }
        // Unlike rename(2), link(2) replaces no file.
        if link(temporary, path) == 0 { return true }
        let hasNoLinks = errno == EPERM || errno == EOPNOTSUPP
        if errno == EEXIST || hasNoLinks && access(path, F_OK) == 0 { return false }
        // File systems without links, such as FAT.
        guard hasNoLinks, rename(temporary, path) == 0 else { throw failure(path) }
        return true
    }

    static func replace(_ path: String, mode: mode_t, _ bytes: [UInt8]) throws {
        let temporary = try temporaryFile(for: path, mode: mode, bytes)
        guard rename(temporary, path) == 0 else {
            let failure = failure(path)
            unlink(temporary)
            throw failure
        }
    }

    /// Writes a file in the directory of `path`, and leaves none if that fails, because an empty one would be taken for a key.
    ///
    /// - Returns: its path.
    private static func temporaryFile(for path: String, mode: mode_t, _ bytes: [UInt8]) throws -> String {
        let temporary = "\(path).\(getpid()).tmp"
        unlink(temporary)
        let descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)
        guard descriptor >= 0 else { throw failure(path) }
        let file = fdopen(descriptor, "w")
        var problem: CommandFailure?
        if fwrite(bytes, 1, bytes.count, file) != bytes.count || fflush(file) != 0 || fsync(descriptor) != 0 {
            problem = failure(path)
        }
        // Some file systems report only here that there was no room.
        if fclose(file) != 0 { problem = problem ?? failure(path) }
        if let problem {
            unlink(temporary)
            throw problem
        }
        return temporary
    }

    private static func failure(_ path: String) -> CommandFailure {
        CommandFailure(.failed, "\(path): \(String(cString: strerror(errno)))")
    }
}
