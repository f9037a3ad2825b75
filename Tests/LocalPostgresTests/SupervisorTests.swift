import Glibc
import Subprocess
import Testing

@testable import LocalPostgres

@Suite("Supervisor")
struct SupervisorTests {
    @Test(
        "When the process that started the server is killed, the server ends and its directory is removed.",
        .timeLimit(.minutes(5))
    )
    func killed() async throws {
        try await withDirectory { directory in
            let user = try await ServerUser.ifNeeded()
            let cluster = try await ClusterDirectory.prepare(directory + "/cluster", for: user)
            try #require(chmod(directory, 0o777) == 0)
            let parameters = [
                try await Installation.find(), cluster.path, cluster.socketDirectory, "remove", "QUIT",
                "-c", "listen_addresses=",
            ]
            // The `sleep` replaces the process that holds the other end of the supervisor's input.
            let starter = #"sh -c 'echo $$ >"$0"; exec sleep 600' "$0" | "$@""#
            let processFile = directory + "/process"
            _ = try await run(
                .name("sh"),
                arguments: Arguments(
                    ["-c", starter, processFile] + ServerUser.shell(user, Supervisor.script, parameters)
                ),
                input: .none,
                output: .sequence,
                error: .discarded
            ) { execution in
                for try await report in execution.standardOutput.strings() {
                    #expect(report == "ready")
                    #expect(access(cluster.path + "/data/postmaster.pid", F_OK) == 0)
                    kill(try #require(await line(1, of: processFile).flatMap { pid_t($0) }), SIGKILL)
                }
            }
            #expect(access(cluster.path, F_OK) != 0)
        }
    }
}
