import FoundationEssentials
import Glibc
import LocalPostgres
import Postgres
import Synchronization

/// A durable PostgreSQL server for one test, which can be killed and started again.
final class PrivateCluster: Sendable {
    private let directory: String
    private let server: Mutex<LocalCluster>

    /// Runs `body` with a cluster, and removes it afterwards.
    static func with<R>(_ body: (PrivateCluster) async throws -> R) async throws -> R {
        let directory = "/tmp/siwad-cluster-\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
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
