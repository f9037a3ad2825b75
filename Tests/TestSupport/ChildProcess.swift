import Subprocess

#if canImport(System)
    import System
#else
    import SystemPackage
#endif

/// Other programs that tests need. They end when the test process ends, even by SIGKILL.
package enum ChildProcess {
    /// Runs a program for as long as `body` runs.
    ///
    /// - Parameter log: the file for its output.
    package static func with<R: Sendable>(
        _ arguments: [String],
        log: String = "/dev/null",
        _ body: () async throws -> R
    ) async throws -> R {
        var options = PlatformOptions()
        // So that Ctrl-C on a terminal reaches the tests, but not the program.
        options.createSession = true
        let run = try await Subprocess.run(
            .path("/bin/sh"),
            arguments: Arguments(["-c", script, "sh", log] + arguments),
            environment: environment,
            platformOptions: options,
            input: .inputWriter,
            output: .discarded,
            error: .discarded
        ) { execution in
            let result: Result<R, any Error>
            do {
                result = .success(try await body())
            } catch {
                result = .failure(error)
            }
            try await execution.standardInputWriter.finish()
            return result
        }
        return try run.closureResult.get()
    }

    /// Runs a program to its end, and returns its output on both streams.
    package static func run(_ arguments: [String]) async throws -> (isSuccess: Bool, output: String) {
        let result = try await Subprocess.run(
            .path("/bin/sh"),
            arguments: Arguments(["-c", "exec 2>&1; exec \"$@\"", "sh"] + arguments),
            environment: environment,
            output: .string(limit: 1 << 20),
            error: .discarded
        )
        return (result.terminationStatus.isSuccess, result.standardOutput)
    }

    private static let environment = Environment.custom([
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8",
    ])

    /// Starts its arguments, and kills that process at the end of its input: the kernel closes it when this process ends.
    private static let script = """
        log=$1
        shift
        exec 3<&0 </dev/null
        "$@" >"$log" 2>&1 3<&- &
        cat <&3 >/dev/null
        kill -s KILL $!
        wait
        """
}
