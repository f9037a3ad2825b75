import StoreTestSupport
import Subprocess
import Testing

#if canImport(System)
    import System
#else
    import SystemPackage
#endif

/// One run of the `siwad` under test, from start to end.
struct CommandRun: Sendable {
    let status: Int32
    let output: String
    let errors: String

    var lines: [Substring] { output.split(whereSeparator: \.isNewline) }
    var errorLines: [Substring] { errors.split(whereSeparator: \.isNewline) }
}

/// Runs the `siwad` under test with the given environment only.
func siwad(
    _ arguments: [String],
    environment: [String: String] = [:],
    in directory: String = "/"
) async throws -> CommandRun {
    let run = try await command(Binary.path, arguments, environment, directory)
    expectNoSecret(in: run, of: arguments, environment)
    return run
}

/// Whatever the test is about: no command prints a sealing key, and the commands listed here print neither a token nor the nonce
/// that they were given.
private func expectNoSecret(in run: CommandRun, of arguments: [String], _ environment: [String: String]) {
    var secrets = Set(TokenSearch.spellings(ofRing: environment["SIWAD_SEALING_KEYS"] ?? ""))
    let name = arguments.first ?? ""
    if ["config", "doctor", "sealing", "sign-in", "tokens"].contains(name) {
        secrets.formUnion(zip(arguments, arguments.dropFirst()).filter { $0.0 == "--nonce" }.map { $0.1 })
        #expect(TokenSearch.tokens(in: [run.output, run.errors]) == [], "siwad \(name) prints a token")
    }
    let found = TokenSearch.occurrences(of: secrets, in: [run.output, run.errors])
    #expect(found == [], "siwad \(name) prints a nonce or a key")
}

/// Runs the `siwad` under test, and sends it SIGINT after a number of seconds.
func siwad(
    _ arguments: [String],
    environment: [String: String] = [:],
    interruptedAfter seconds: Int
) async throws -> CommandRun {
    let timeout = ["--preserve-status", "--signal=INT", "\(seconds)", Binary.path]
    return try await command("/usr/bin/timeout", timeout + arguments, environment, "/")
}

/// Runs the `siwad` under test from a shell with its output redirected, such as `| true`.
func siwad(
    _ arguments: [String],
    redirectedBy redirection: String,
    environment: [String: String] = [:]
) async throws -> CommandRun {
    let words = ([Binary.path] + arguments).map { "'\($0)'" }.joined(separator: " ")
    return try await command("/bin/sh", ["-c", "\(words) \(redirection)"], environment, "/")
}

/// Runs the `siwad` under test on a terminal, without colours unless `NO_COLOR` is given. The output includes its errors.
func siwadOnTerminal(
    _ arguments: [String],
    columns: Int,
    environment: [String: String] = [:]
) async throws -> CommandRun {
    // script(1) of util-linux, an essential package of Debian, provides the terminal.
    let words = ([Binary.path] + arguments).map { "'\($0)'" }.joined(separator: " ")
    let script = ["-qec", "stty cols \(columns); \(words)", "/dev/null"]
    return try await command("/usr/bin/script", script, ["NO_COLOR": "1"].merging(environment) { $1 }, "/")
}

private func command(
    _ path: String,
    _ arguments: [String],
    _ environment: [String: String],
    _ directory: String
) async throws -> CommandRun {
    let result = try await run(
        .path(FilePath(path)),
        arguments: Arguments(arguments),
        environment: .siwad(environment),
        workingDirectory: FilePath(directory),
        output: .string(limit: 4 << 20),
        error: .string(limit: 4 << 20)
    )
    let status: Int32 =
        switch result.terminationStatus {
        case .exited(let code): code
        case .signaled(let signal): 128 + signal
        }
    return CommandRun(status: status, output: result.standardOutput, errors: result.standardError)
}

extension Environment {
    /// The environment of a program under test, without that of the tests.
    static func siwad(_ variables: [String: String]) -> Environment {
        var all = ["PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"]
        all.merge(variables) { _, given in given }
        return .custom(
            Dictionary(uniqueKeysWithValues: all.map { (Environment.Key(stringLiteral: $0.key), $0.value) })
        )
    }
}
