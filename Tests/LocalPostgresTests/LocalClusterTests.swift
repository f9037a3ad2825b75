import Glibc
import LocalPostgres
import Postgres
import Subprocess
import TestSupport
import Testing

@Suite("Local cluster")
struct LocalClusterTests {
    @Test("A durable cluster keeps its data over a restart, and other users cannot enter it.")
    func restart() async throws {
        try await withDirectory { directory in
            let first = try await LocalCluster.start(at: directory + "/deep/inside")
            try await execute("CREATE TABLE public.kept (n integer)", first)
            #expect(await postgresError(first.conninfo() + " host=127.0.0.1") == .connectionFailed)
            await first.stop()
            #expect(await postgresError(first.conninfo()) == .connectionFailed)

            let second = try await LocalCluster.start(at: directory + "/deep/inside/")
            try await execute("SELECT * FROM public.kept", second)
            #expect(try permissions(second.directory) == 0o700)
            await second.stop()
        }
    }

    @Test("A cluster starts again after it was killed.")
    func crash() async throws {
        try await withDirectory { directory in
            let first = try await LocalCluster.start(at: directory + "/cluster")
            try await execute("CREATE TABLE public.kept (n integer); CHECKPOINT", first)
            let process = try #require(
                await line(1, of: "\(first.directory)/data/postmaster.pid").flatMap { pid_t($0) }
            )
            kill(process, SIGKILL)
            await first.stop()
            let second = try await LocalCluster.start(at: directory + "/cluster")
            try await execute("SELECT * FROM public.kept", second)
            await second.stop()
        }
    }

    @Test("A second cluster in the same directory starts when the first has stopped, or is refused.")
    func twice() async throws {
        try await withDirectory { directory in
            let first = try await LocalCluster.start(at: directory + "/cluster")
            async let second = LocalCluster.start(at: directory + "/cluster")
            var impatient = LocalCluster.Options()
            impatient.formerServerWait = .zero
            let options = impatient
            let error = await #expect(throws: LocalPostgresError.self) {
                try await LocalCluster.start(at: directory + "/cluster", options)
            }
            #expect(error?.description.contains("stop it first") == true)
            try await execute("SELECT 1", first)
            await first.stop()
            let next = try await second
            try await execute("SELECT 1", next)
            await next.stop()
        }
    }

    @Test("With a port, the cluster accepts TCP connections from this machine.")
    func port() async throws {
        try await withDirectory { directory in
            let (cluster, port) = try await startOnFreePort(at: directory + "/cluster")
            try await execute("SELECT 1", conninfo: "host=127.0.0.1 port=\(port) user=postgres dbname=postgres")
            await cluster.stop()
        }
    }

    /// Tries another port if a process took the first one before the server.
    private func startOnFreePort(at directory: String) async throws -> (LocalCluster, UInt16) {
        var options = LocalCluster.Options()
        options.durability = .volatile
        for _ in 0..<5 {
            let port = try SilentServer().port
            options.port = port
            do {
                return (try await LocalCluster.start(at: directory, options), port)
            } catch let error as LocalPostgresError where error.message.contains("TCP/IP") {
                continue
            }
        }
        throw PortsTaken()
    }

    private struct PortsTaken: Error {}

    @Test("A temporary cluster removes its directory.")
    func temporary() async throws {
        let cluster = try await LocalCluster.startTemporary()
        try await execute("SELECT 1", cluster)
        #expect(access(cluster.directory, F_OK) == 0)
        await cluster.stop()
        #expect(access(cluster.directory, F_OK) != 0)
    }

    @Test("The directory's path may be too long for a socket, or contain quotes and spaces.")
    func awkwardPath() async throws {
        try await withDirectory { directory in
            let long = String(repeating: "long-name-", count: 12)
            for name in [long, "it's \\ a \"name\""] {
                let cluster = try await LocalCluster.start(at: "\(directory)/\(name)")
                try await execute("SELECT 1", cluster)
                await cluster.stop()
            }
        }
    }

    @Test(
        "A path that the server's user cannot reach is replaced by another, the same one until the path is removed.",
        .enabled(if: geteuid() == 0)
    )
    func unreachable() async throws {
        try await withDirectory { directory in
            try #require(mkdir(directory + "/private", 0o700) == 0)
            let first = try await LocalCluster.start(at: directory + "/private/cluster")
            #expect(first.directory.hasPrefix("/var/tmp/"))
            try await execute("CREATE TABLE public.kept (n integer)", first)
            await first.stop()
            let second = try await LocalCluster.start(at: directory + "/private/cluster")
            try await execute("SELECT * FROM public.kept", second)
            await second.stop()
            #expect(second.directory == first.directory)
            _ = try await run(.name("rm"), arguments: ["-rf", directory + "/private/cluster"], output: .discarded)
            let third = try await LocalCluster.start(at: directory + "/private/cluster")
            #expect(await postgresError(third.conninfo()) == nil)
            await #expect(throws: PostgresError.self) { try await execute("SELECT * FROM public.kept", third) }
            await third.stop()
            _ = try await run(
                .name("rm"),
                arguments: ["-rf", second.directory, third.directory],
                output: .discarded
            )
        }
    }

    @Test("The error for a directory that cannot be created names it.")
    func unusable() async throws {
        let error = await #expect(throws: LocalPostgresError.self) {
            try await LocalCluster.start(at: "/dev/null/cluster")
        }
        #expect(error?.code == .unusableDirectory)
        #expect(error?.description.contains("/dev/null") == true)
    }
}
