import FoundationEssentials
import Glibc
import Telemetry
import Terminal

/// The process: one command, one exit code.
@main
struct Main {
    /// When the process began, for the log line that says how long it took to be ready.
    static let start = ContinuousClock.now

    static func main() async {
        _ = start
        let environment = ProcessInfo.processInfo.environment
        let runner = CommandRunner(
            environment: environment,
            console: .standard(environment: environment),
            startLog: { Log.bootstrap(level: $0, format: $1) }
        )
        let status = await runner.run(Array(CommandLine.arguments.dropFirst()))
        exit(status.rawValue)
    }
}
