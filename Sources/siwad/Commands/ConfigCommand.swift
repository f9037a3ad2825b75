import ArgumentParser
import Settings
import Terminal

/// `siwad config`
struct ConfigCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "config",
        abstract: "Print every setting: the value in force, where it came from, what it does.",
        discussion: """
            Passwords are masked. If something is wrong, each problem is a line on standard error, and the exit code is 78.

            Example:
              siwad config --config /etc/siwad/siwad.yaml
            """
    )

    @Flag(name: .long, help: "One JSON object per setting.")
    var json = false
    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { options.flags }

    func report(_ error: SettingsError, to console: Console) -> CommandStatus? {
        print(error.entries, to: console)
        for problem in error.problems { console.report(CommandFailure(.configuration, problem)) }
        return .configuration
    }

    func run(_ invocation: Invocation) async throws {
        // What libpq can't read is found out here rather than by whoever wants to connect.
        if invocation.configuration.database != .notConfigured { _ = try invocation.configuration.connectionSettings() }
        print(invocation.configuration.entries, to: invocation.console)
    }

    private func print(_ entries: [Configuration.Entry], to console: Console) {
        let listing = ConfigurationListing(entries: entries, usualLogFormat: .usual(on: console))
        console.print(lines: json ? listing.json.map(\.line) : listing.lines(style: console.style))
    }
}
