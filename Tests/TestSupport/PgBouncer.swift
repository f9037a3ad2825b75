import Glibc
import Postgres
import Testing

/// A PgBouncer in front of a test database, on its own unix socket.
package struct PgBouncer: Sendable {
    /// Its `pool_mode`.
    package enum PoolMode: String, Sendable {
        /// A client keeps its server connection.
        case session
        /// A client has a server connection for each transaction.
        case transaction
        /// A client has a server connection for each statement.
        case statement
    }

    /// An error of psql, with its output.
    package struct Failure: Error, CustomStringConvertible {
        package let description: String
    }

    /// The path in Debian's package.
    static let path = "/usr/sbin/pgbouncer"
    package static let isInstalled = access(path, X_OK) == 0

    /// How to connect to the database through it.
    package let conninfo: String
    private let directory: String
    private let database: TestDatabase

    /// Runs a test with a pooler in front of a database.
    ///
    /// - Parameter settings: further settings for `pgbouncer.ini`.
    package static func with<R: Sendable>(
        _ database: TestDatabase,
        _ mode: PoolMode,
        _ settings: [String: String] = [:],
        _ body: (PgBouncer) async throws -> R
    ) async throws -> R {
        let directory = try TemporaryDirectory()
        let place = Dictionary(
            uniqueKeysWithValues: database.settings.redactedDescription.split(separator: " ").map { field in
                let parts = field.split(separator: "=")
                return (parts[0], parts[1])
            }
        )
        let sockets = String(try #require(place["host"]))
        let all = [
            "unix_socket_dir": directory.path, "auth_type": "any", "pool_mode": mode.rawValue,
        ].merging(settings) { _, given in given }
        let text =
            "[databases]\n* = host=\(sockets) port=\(place["port"] ?? "5432") user=postgres\n[pgbouncer]\n"
            + all.map { "\($0.key) = \($0.value)\n" }.sorted().joined()
        try directory.write(Array(text.utf8), to: "pgbouncer.ini")
        let command = [path, directory.file("pgbouncer.ini")]
        return try await ChildProcess.with(
            try unprivileged(command, asOwnerOf: sockets, in: directory),
            log: directory.file("log")
        ) {
            try await waitForSocket(directory.file(".s.PGSQL.6432"))
            let conninfo = "host=\(directory.path) port=6432 user=postgres dbname=\(database.name)"
            return try await body(PgBouncer(conninfo: conninfo, directory: directory.path, database: database))
        }
    }

    /// Runs statements in psql over one connection to the pooler, each in its own transaction, and returns the output.
    package func psql(_ statements: String...) async throws -> [String] {
        let commands = statements.flatMap { ["-c", $0] }
        let run = try await ChildProcess.run(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", conninfo] + commands)
        guard run.isSuccess else { throw Failure(description: "psql: \(run.output)") }
        return run.output.split(separator: "\n").map(String.init)
    }

    /// Makes the pooler open two server connections: two statements wait for the same lock at the same time.
    package func openTwoServerConnections() async throws {
        let gate = try await PostgresConnection.connect(database.settings)
        try await gate.withSession { session throws(PostgresError) in
            try session.execute(script: "SELECT pg_advisory_lock(1)")
        }
        async let first = psql("SELECT pg_advisory_xact_lock_shared(1)")
        async let second = psql("SELECT pg_advisory_xact_lock_shared(1)")
        while try await waitingForLock(gate) < 2 { await Task.yield() }
        try await gate.withSession { session throws(PostgresError) in
            try session.execute(script: "SELECT pg_advisory_unlock(1)")
        }
        _ = try await (first, second)
        await gate.close()
    }

    private func waitingForLock(_ connection: PostgresConnection) async throws -> Int32 {
        let count = Statement(
            """
            SELECT count(*)::integer FROM pg_stat_activity
            WHERE wait_event = 'advisory' AND datname = current_database()
            """
        )
        return try await connection.withSession { session throws(PostgresError) in
            try session.execute(count).int32(0, 0)
        }
    }

    /// Lets PgBouncer, which refuses to run as root, run as the user whose socket it connects to.
    private static func unprivileged(
        _ command: [String],
        asOwnerOf path: String,
        in directory: TemporaryDirectory
    ) throws -> [String] {
        guard geteuid() == 0 else { return command }
        var status = stat()
        try #require(stat(path, &status) == 0)
        try #require(chown(directory.path, status.st_uid, status.st_gid) == 0)
        return ["setpriv", "--reuid=\(status.st_uid)", "--regid=\(status.st_gid)", "--clear-groups", "--"] + command
    }

    private static func waitForSocket(_ path: String) async throws {
        let deadline = ContinuousClock.now + .seconds(30)
        while !isListening(path) {
            try #require(.now < deadline, "PgBouncer did not start")
            try await Task.sleep(for: .milliseconds(3))
        }
    }

    private static func isListening(_ path: String) -> Bool {
        let descriptor = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
        defer { close(descriptor) }
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: path.utf8) }
        return withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_un>.size)) == 0
            }
        }
    }
}
