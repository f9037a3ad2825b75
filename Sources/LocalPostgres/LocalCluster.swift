/// A private PostgreSQL server: a child of this process, on a unix socket in its own directory, that ends when this
/// process does, however that ends.
///
/// Its superuser is `postgres`; whoever may enter the directory may connect. As root, PostgreSQL runs as the user
/// `postgres` or else `nobody`, because it refuses to run as root.
package final class LocalCluster: Sendable {
    /// How much the cluster does for its data.
    package enum Durability: Sendable {
        /// What PostgreSQL promises: commits survive a crash of the machine.
        case durable
        /// For tests: fast, lost with the machine, and stopped without a checkpoint.
        case volatile
    }

    /// What may differ between clusters.
    package struct Options: Sendable {
        /// How much the cluster does for its data.
        package var durability = Durability.durable
        /// A port on 127.0.0.1, open to every local user; nil: no TCP at all.
        package var port: UInt16?
        /// How many connections the server takes at most.
        package var maximumConnections = 100
        /// Further settings of the server, by their names in `postgresql.conf`.
        package var settings: [String: String] = [:]

        /// A durable cluster without TCP.
        package init() {}
    }

    /// Where data, log and socket are: the directory asked for, or one that the server's user can reach instead.
    package let directory: String
    /// What libpq takes as `host`.
    package let socketDirectory: String
    private let port: UInt16
    private let supervisor: Supervisor

    private init(_ place: ClusterPlace, port: UInt16, _ supervisor: Supervisor) {
        self.directory = place.directory
        self.socketDirectory = place.socketDirectory
        self.port = port
        self.supervisor = supervisor
    }

    /// Starts the cluster in `directory`, made and initialized when it is not there, and waits until it takes
    /// connections.
    ///
    /// - Throws: `LocalPostgresError`, `CancellationError`.
    package static func start(at directory: String, _ options: Options = Options()) async throws -> LocalCluster {
        try await start(options) { user throws(LocalPostgresError) in
            try await ClusterPlace.prepare(directory, for: user)
        }
    }

    /// Starts a volatile cluster in a directory of its own that goes when the cluster stops or this process ends.
    ///
    /// - Throws: as `start(at:_:)`.
    package static func startTemporary(_ options: Options = Options()) async throws -> LocalCluster {
        var options = options
        options.durability = .volatile
        return try await start(options) { user throws(LocalPostgresError) in
            try ClusterPlace.makeTemporary(for: user)
        }
    }

    /// How to connect to a database of the cluster.
    package func conninfo(database: String = "postgres") -> String {
        "host=\(Self.quoted(socketDirectory)) port=\(port) user=postgres dbname=\(Self.quoted(database))"
    }

    /// Stops the server, ending what connections do, and waits until it is gone.
    package func stop() async {
        await supervisor.stop()
    }

    // MARK: - Private parts

    private static func start(
        _ options: Options,
        _ place: (ServerUser?) async throws(LocalPostgresError) -> ClusterPlace
    ) async throws -> LocalCluster {
        let programs = try await Installation.find()
        let user = try await ServerUser.ifNeeded()
        let place = try await place(user)
        let supervisor = Supervisor(
            arguments: [
                programs.directory, place.directory, place.socketDirectory,
                place.isTemporary ? "remove" : "keep",
                options.durability == .volatile ? "QUIT" : "INT",
            ] + settings(options),
            user: user
        )
        try await supervisor.waitUntilReady()
        return LocalCluster(place, port: options.port ?? defaultPort, supervisor)
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

    /// A value of a conninfo string.
    private static func quoted(_ value: String) -> String {
        "'" + value.flatMap { $0 == "'" || $0 == "\\" ? ["\\", $0] : [$0] } + "'"
    }
}
