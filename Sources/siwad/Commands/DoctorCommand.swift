import AppleTokens
import ArgumentParser
import NotificationServer
import Settings
import Telemetry
import Terminal

/// `siwad doctor`
struct DoctorCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "doctor",
        abstract: "Look whether everything that siwad serve needs is there and well, and say what to do.",
        discussion: """
            A line for each check: ✓ is well, ⚠ is suspicious, ✗ is wrong. The exit code is 1 if anything is wrong. Run it \
            where siwad serve runs, with the same configuration.

            Example:
              siwad doctor --config /etc/siwad/siwad.yaml
            """
    )

    @Flag(name: .long, help: "One JSON object per check.")
    var json = false
    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { options.flags }
    var defaultLogLevel: LogLevel? { .error }

    func report(_ error: SettingsError, to console: Console) -> CommandStatus? {
        print(
            Report(error.problems.map { .fail(.configuration, $0, "correct it; siwad config lists every key") }),
            console
        )
        return .failed
    }

    func run(_ invocation: Invocation) async throws {
        let loops = EventLoops.start(count: 1)
        let checkup = Checkup(
            configuration: invocation.configuration,
            loops: loops,
            now: { WallTime.now() },
            databaseURLFile: invocation.databaseURLFile
        )
        let report = await checkup.run()
        await loops.stop()
        print(report, invocation.console)
        guard report.isPassed else { throw CommandFailure(silent: .failed) }
    }

    private func print(_ report: Report, _ console: Console) {
        console.print(lines: json ? report.json.map(\.line) : report.lines(style: console.style))
    }
}
