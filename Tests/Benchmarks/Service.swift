import AsyncHTTPClient
import Glibc
import NIOCore
import NIOHTTP1
import Subprocess

#if canImport(System)
    import System
#else
    import SystemPackage
#endif

/// A service under test: how to start it and where it listens.
struct Service: Sendable {
    let name: String
    let executable: String
    var arguments: [String]
    var environment: [String: String]
    /// The database that it uses.
    let database: String
    /// Where requests are posted.
    var url: String
    /// Responds with 200 when the service is ready.
    let healthURL: String
    var workingDirectory = "/"

    /// Runs `body` while the service runs, then ends the service.
    func running<R: Sendable>(_ body: @Sendable @escaping (ProcessFigures) async throws -> R) async throws -> R {
        var options = PlatformOptions()
        options.teardownSequence = [.gracefulShutDown(allowedDurationToNextStep: .seconds(20))]
        options.createSession = true
        var variables = environment
        variables["PATH"] = "/usr/bin:/bin:/usr/sbin:/sbin"
        let result = try await run(
            .path(FilePath(executable)),
            arguments: Arguments(arguments),
            environment: .custom(
                Dictionary(uniqueKeysWithValues: variables.map { (Environment.Key(stringLiteral: $0.key), $0.value) })
            ),
            workingDirectory: FilePath(workingDirectory),
            platformOptions: options,
            input: .none,
            output: .discarded,
            error: .discarded
        ) { execution -> Result<R, any Error> in
            let result: Result<R, any Error>
            do {
                try await untilHealthy()
                result = .success(try await body(ProcessFigures(processID: execution.processIdentifier.value)))
            } catch {
                result = .failure(error)
            }
            // The whole process group: uvicorn's workers survive a signal to their parent only.
            try? execution.send(signal: .terminate, toProcessGroup: true)
            return result
        }
        return try result.closureResult.get()
    }

    private func untilHealthy() async throws {
        let clock = ContinuousClock()
        let deadline = clock.now + .seconds(30)
        while clock.now < deadline {
            let request = HTTPClientRequest(url: healthURL)
            // The connection is refused until the service listens.
            if let response = try? await HTTPClient.shared.execute(request, timeout: .seconds(1)),
                response.status == .ok
            {
                return
            }
            try await clock.sleep(for: .milliseconds(50))
        }
        throw BenchmarkError("\(name) did not become ready at \(healthURL); start it by hand to see the cause")
    }
}

/// Runs a program and returns its standard output.
func output(
    of program: String,
    _ arguments: [String],
    environment: [String: String] = [:],
    in directory: String = "/"
) async throws -> String {
    var variables = environment
    variables["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    variables["HOME"] = variables["HOME"] ?? "/tmp"
    do {
        let result = try await run(
            program.hasPrefix("/") ? .path(FilePath(program)) : .name(program),
            arguments: Arguments(arguments),
            environment: .custom(
                Dictionary(uniqueKeysWithValues: variables.map { (Environment.Key(stringLiteral: $0.key), $0.value) })
            ),
            workingDirectory: FilePath(directory),
            output: .string(limit: 16 << 20),
            error: .string(limit: 1 << 20)
        )
        guard result.terminationStatus.isSuccess else {
            let message = result.standardError.split(separator: "\n").last.map(String.init) ?? "no message"
            throw BenchmarkError("\(program) \(arguments.first ?? "") failed: \(message)")
        }
        return result.standardOutput
    } catch let error as SubprocessError {
        throw BenchmarkError("cannot run \(program): \(error)")
    }
}
