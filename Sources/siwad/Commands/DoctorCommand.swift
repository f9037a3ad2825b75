import AppleTokens
import ArgumentParser
import Basics
import Listening
import Settings
import Telemetry
import Terminal

struct DoctorCommand: DaemonCommand {
    static let configuration = CommandConfiguration(
        commandName: "doctor",
        abstract: "Check everything that siwad serve needs, and say how to fix it.",
        discussion: """
            Prints a line for each check: ✓ passed, ⚠ needs attention, ✗ failed. The exit code is 1 if a check failed. \
            Run it where siwad serve runs, with the same configuration.

            Example:
              siwad doctor --config /etc/siwad/siwad.yaml
            """
    )

    @Flag(help: "Send an invented code to Apple's token endpoint for each client id, to see whether Apple accepts it.")
    var live = false
    @Flag(help: "Print one JSON object per check.")
    var json = false
    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    var defaultLogLevel: LogLevel? { .error }

    func report(_ error: SettingsError, to console: Console) -> CommandStatus? {
        let findings = error.problems.map {
            let config = nextCommand("config", accepting: SettingKey.allCases)
            return Finding.fail(.configuration, $0, "correct it; \(config) lists every key")
        }
        console.print(Report(findings), asJSON: json)
        return .failed
    }

    func run(_ invocation: Invocation) async throws {
        let report = await Checkup(
            configuration: invocation.configuration,
            loops: .ofCommand,
            now: { WallTime.now() },
            secretFiles: invocation.secretFiles,
            isLive: live
        ).run()
        invocation.console.print(report, asJSON: json)
        guard report.isPassed else { throw CommandFailure(.failed, "") }
    }
}
