import ArgumentParser
import Settings

/// What every command takes.
struct CommonOptions: ParsableArguments {
    @Option(name: .long, help: ArgumentHelp("Configuration file, YAML or JSON.", valueName: "file"))
    var config: String?

    @Option(
        name: .customLong("log-level"),
        help: ArgumentHelp("trace, debug, info, notice, warning, error or critical.", valueName: "level")
    )
    var logLevel: String?

    /// The sources of the settings, with these flags beside our own.
    func sources(flags: [SettingKey: String], environment: [String: String]) -> SettingsSources {
        var flags = flags
        flags[.logLevel] = logLevel
        return SettingsSources(flags: flags, environment: environment, configurationFile: config)
    }
}
