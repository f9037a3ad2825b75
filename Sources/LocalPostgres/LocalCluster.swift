import Glibc

/// A private PostgreSQL server: a child of this process, on a unix socket in its own directory. It stops when this process
/// ends, even by SIGKILL.
///
/// Its superuser is `postgres`, and every user that may enter the directory may connect. If this process runs as root, the
/// server runs as an unprivileged user, usually `postgres`.
package final class LocalCluster: Sendable {
    package enum Durability: Sendable {
        /// Commits survive a crash of the machine.
        case durable
        /// For tests: fast, lost if the machine crashes, and stopped without a checkpoint.
        case volatile
    }

    package struct Options: Sendable {
        package var durability = Durability.durable
        /// A port on 127.0.0.1, open to every local user; nil for no TCP.
        package var port: UInt16?
        package var maximumConnections = 100
        /// How long to wait for a former server that is still shutting down.
        package var formerServerWait = Duration.seconds(10)
        /// Further settings of the server, by their names in `postgresql.conf`.
        package var settings: [String: String] = [:]
        /// The directory of PostgreSQL's programs; nil for the one that `POSTGRES_BIN` names, or the newest that is installed.
        package var programs: String?

        package init() {}
    }

    /// The directory of data, log and socket: the requested one, or its replacement that the server's user can reach.
    package let directory: String
    /// The `host` for libpq.
    package let socketDirectory: String
    private let port: UInt16
    private let supervisor: Supervisor

    private init(_ cluster: ClusterDirectory, port: UInt16, _ supervisor: Supervisor) {
        self.directory = cluster.path
        self.socketDirectory = cluster.socketDirectory
        self.port = port
        self.supervisor = supervisor
    }

    /// Starts the cluster in `directory`, which is created and initialized if necessary, and waits until it accepts
    /// connections.
    ///
    /// - Throws: `LocalPostgresError`, also if a former server does not end in time; `CancellationError`.
    package static func start(at directory: String, _ options: Options = Options()) async throws -> LocalCluster {
        try await start(in: directory, options)
    }

    /// Starts a volatile cluster in a temporary directory, which is removed when the cluster stops or this process ends.
    ///
    /// - Throws: as `start(at:_:)`.
    package static func startTemporary(_ options: Options = Options()) async throws -> LocalCluster {
        var options = options
        options.durability = .volatile
        return try await start(in: nil, options)
    }

    /// Deletes the cluster that ``start(at:_:)`` made in a directory, once its server has stopped.
    ///
    /// - Returns: false if there is none.
    /// - Throws: `LocalPostgresError` if the server still runs after ten seconds.
    package static func remove(at directory: String) async throws -> Bool {
        try await ClusterDirectory.remove(directory)
    }

    package func conninfo(database: String = "postgres") -> String {
        "host=\(Self.quoted(socketDirectory)) port=\(port) user=postgres dbname=\(Self.quoted(database))"
    }

    /// Stops the server without waiting for its clients, and returns when it has ended.
    package func stop() async {
        await supervisor.stop()
        // The supervisor leaves it, because without this process it would remove the directory of the next server.
        if !socketDirectory.hasPrefix(directory) { rmdir(socketDirectory) }
    }

    // MARK: - Private parts

    /// - Parameter path: nil for a temporary directory.
    private static func start(in path: String?, _ options: Options) async throws -> LocalCluster {
        let programs = if let programs = options.programs { programs } else { try await Installation.find() }
        let user = try await ServerUser.ifNeeded()
        let directory =
            if let path {
                try await ClusterDirectory.prepare(path, for: user)
            } else {
                try ClusterDirectory.makeTemporary(for: user)
            }
        if !directory.isTemporary {
            try await ClusterDirectory.waitForServer(in: directory.path, atMost: options.formerServerWait)
        }
        let supervisor = Supervisor(
            arguments: [
                programs, directory.path, directory.socketDirectory,
                directory.isTemporary ? "remove" : "keep",
                options.durability == .volatile ? "QUIT" : "INT",
            ] + settings(options),
            user: user
        )
        try await supervisor.waitUntilReady()
        return LocalCluster(directory, port: options.port ?? defaultPort, supervisor)
    }

    private static let defaultPort: UInt16 = 5432

    private static func settings(_ options: Options) -> [String] {
        var settings = [
            "port=\(options.port ?? defaultPort)",
            "listen_addresses=\(options.port == nil ? "" : "127.0.0.1")",
            "max_connections=\(options.maximumConnections)",
            "unix_socket_permissions=0700",
            "log_destination=stderr",
            "logging_collector=off",
        ]
        switch options.durability {
        case .durable: break
        case .volatile: settings += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        }
        settings += options.settings.map { "\($0.key)=\($0.value)" }.sorted()
        return settings.flatMap { ["-c", $0] }
    }

    private static func quoted(_ value: String) -> String {
        "'" + value.flatMap { $0 == "'" || $0 == "\\" ? ["\\", $0] : [$0] } + "'"
    }
}

package struct LocalPostgresError: Error, Sendable, CustomStringConvertible {
    package enum Code: String, Sendable, CaseIterable {
        case notInstalled = "not-installed"
        case unusableDirectory = "unusable-directory"
        /// The server ended before it accepted connections.
        case notStarted = "not-started"
    }

    package let code: Code
    /// The cause and the next step, in one line.
    package let message: String

    init(_ code: Code, _ message: String) {
        self.code = code
        self.message = message
    }

    package var description: String { message }
}
