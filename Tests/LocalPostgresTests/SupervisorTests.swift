import Glibc
import Subprocess
import Testing

@testable import LocalPostgres

@Suite("Supervisor")
struct SupervisorTests {
    /// The `sleep` replaces the process that holds the other end of the supervisor's input.
    private static let starter = #"sh -c 'echo $$ >"$0"; exec sleep 600' "$0" | "$@""#

    /// A start of a cluster by a process that the test can kill: its number is the first line of `processFile`.
    private struct Start {
        let cluster: ClusterDirectory
        let processFile: String
        let arguments: Arguments
    }

    /// - Parameter atEnd: what becomes of the cluster, as for the script of the supervisor.
    private func startingScript(in directory: String, atEnd: String) async throws -> Start {
        let user = try await ServerUser.ifNeeded()
        let cluster = try await ClusterDirectory.prepare(directory + "/cluster", for: user)
        try #require(chmod(directory, 0o777) == 0)
        let parameters = [
            try await Installation.find(), cluster.path, cluster.socketDirectory, atEnd, "QUIT",
            "-c", "listen_addresses=",
        ]
        let processFile = directory + "/process"
        let script = ServerUser.shell(user, Supervisor.script, parameters)
        return Start(
            cluster: cluster,
            processFile: processFile,
            arguments: Arguments(["-c", Self.starter, processFile] + script)
        )
    }

    @Test(
        "When the process that started the server is killed, the server ends and its directory is removed.",
        .timeLimit(.minutes(5))
    )
    func killed() async throws {
        try await withDirectory { directory in
            let start = try await startingScript(in: directory, atEnd: "remove")
            let cluster = start.cluster
            _ = try await run(
                .name("sh"),
                arguments: start.arguments,
                input: .none,
                output: .sequence,
                error: .discarded
            ) { execution in
                for try await report in execution.standardOutput.strings() {
                    #expect(report == "ready")
                    #expect(access(cluster.path + "/data/postmaster.pid", F_OK) == 0)
                    kill(try #require(await line(1, of: start.processFile).flatMap { pid_t($0) }), SIGKILL)
                }
            }
            #expect(access(cluster.path, F_OK) != 0)
        }
    }

    @Test("A start succeeds while a killed process still initializes the same directory.", .timeLimit(.minutes(5)))
    func killedDuringInitialization() async throws {
        try await withDirectory { directory in
            let start = try await startingScript(in: directory, atEnd: "keep")
            let cluster = start.cluster
            _ = try await run(
                .name("sh"),
                arguments: start.arguments,
                input: .none,
                output: .discarded,
                error: .discarded
            ) { _ in
                let places = ["/data.new", "/data"].map { cluster.path + $0 }
                while !places.contains(where: { access($0, F_OK) == 0 }) { try await Task.sleep(for: .milliseconds(2)) }
                kill(try #require(await line(1, of: start.processFile).flatMap { pid_t($0) }), SIGKILL)
                let second = try await LocalCluster.start(at: directory + "/cluster")
                try await execute("SELECT 1", second)
                await second.stop()
            }
        }
    }
}
