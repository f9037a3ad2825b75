import FoundationEssentials
import Glibc
import LocalPostgres
import Postgres
import Synchronization
import TestSupport
import Testing

/// A durable PostgreSQL server for one test, which can be killed and started again.
final class PrivateCluster: Sendable {
    private let directory: String
    private let server: Mutex<LocalCluster>

    /// Runs `body` with a cluster, and removes it afterwards.
    static func with<R>(_ body: (PrivateCluster) async throws -> R) async throws -> R {
        try await with(directory: randomDirectory(), body)
    }

    /// Runs `body` with a cluster and its database `siwa`, which has the schema and the clients of the fixture's apps.
    static func withMigrated(_ body: (PrivateCluster, DaemonFixture) async throws -> Void) async throws {
        try await with { cluster in
            let connection = try await DaemonFixture.connect(cluster.conninfo())
            try await connection.withSession { session throws(PostgresError) in
                try session.execute(script: "CREATE DATABASE siwa")
            }
            await connection.close()
            let conninfo = cluster.conninfo(database: "siwa")
            let settings = ["SIWAD_DATABASE_URL": conninfo, "SIWAD_APPS": DaemonFixture.apps]
            #expect(try await siwad(["migrate"], environment: settings).status == 0)
            // The application's sign-ins need the clients of the apps, which the first start creates.
            try await DaemonFixture.with(conninfo) { fixture in
                try await fixture.withDaemon { _, _ in }
                try await body(cluster, fixture)
            }
        }
    }

    /// Runs `body` with a standby that follows this server by streaming replication, and removes it afterwards.
    func withStandby<R>(_ body: (PrivateCluster) async throws -> R) async throws -> R {
        let copy = Self.randomDirectory()
        // The user of the tests makes the copy, which then belongs to the user that the server runs as.
        let script = """
            mkdir -m 700 "$1"
            pg_basebackup --dbname "$2" --pgdata "$1/data" --write-recovery-conf --checkpoint fast
            chown -R --reference "$3" "$1"
            """
        let source = server.withLock { $0 }
        let run = try await ChildProcess.run(
            ["/bin/sh", "-ec", script, "sh", copy, source.conninfo(), source.directory]
        )
        guard run.isSuccess else { throw TooLate("a copy of the server: \(run.output)") }
        return try await Self.with(directory: copy, body)
    }

    private static func with<R>(
        directory: String,
        _ body: (PrivateCluster) async throws -> R
    ) async throws -> R {
        let cluster = PrivateCluster(directory, try await LocalCluster.start(at: directory, options))
        do {
            let result = try await body(cluster)
            await cluster.remove()
            return result
        } catch {
            await cluster.remove()
            throw error
        }
    }

    private static func randomDirectory() -> String {
        "/tmp/siwad-cluster-\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
    }

    private static var options: LocalCluster.Options {
        var options = LocalCluster.Options()
        options.durability = .durable
        return options
    }

    private init(_ directory: String, _ server: LocalCluster) {
        self.directory = directory
        self.server = Mutex(server)
    }

    /// How to connect; the same after every start.
    func conninfo(database: String = "postgres") -> String {
        server.withLock { $0 }.conninfo(database: database)
    }

    /// Stops the server normally.
    func stop() async {
        await server.withLock { $0 }.stop()
    }

    /// Kills every process of the server with SIGKILL.
    func kill() async throws {
        let server = server.withLock { $0 }
        let lock = try String(contentsOfFile: server.directory + "/data/postmaster.pid", encoding: .utf8)
        guard let postmaster = lock.split(separator: "\n").first.flatMap({ Int32($0) }) else {
            throw TooLate("the server's process id")
        }
        let children = try Self.children(of: postmaster)
        for process in [postmaster] + children { _ = Glibc.kill(process, SIGKILL) }
        // A process that was started in between ends when it notices that the postmaster is gone.
        await server.stop()
    }

    /// Starts the server again.
    func start() async throws {
        var started: LocalCluster?
        try await eventually("PostgreSQL to start again") {
            do {
                started = try await LocalCluster.start(at: directory, Self.options)
            } catch let error as LocalPostgresError where error.code == .notStarted {
                // A process of the killed server may not have ended yet.
            }
            return started != nil
        }
        guard let started else { return }
        server.withLock { $0 = started }
    }

    private func remove() async {
        await stop()
        // A directory that remains in /tmp does no harm.
        try? FileManager.default.removeItem(atPath: directory)
    }

    /// The fourth field of `stat` is the parent (proc(5)). The second, in parentheses, may contain any character.
    private static func children(of parent: Int32) throws -> [Int32] {
        try FileManager.default.contentsOfDirectory(atPath: "/proc").compactMap { name in
            guard let process = Int32(name) else { return nil }
            // The process may have ended.
            guard let stat = try? String(contentsOfFile: "/proc/\(name)/stat", encoding: .utf8),
                let end = stat.lastIndex(of: ")")
            else { return nil }
            let fields = stat[stat.index(after: end)...].split(separator: " ")
            return fields.count > 1 && fields[1] == "\(parent)" ? process : nil
        }
    }
}
