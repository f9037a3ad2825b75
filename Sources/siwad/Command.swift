import ArgumentParser
import Settings
import Telemetry
import Terminal

/// A command that does something, rather than hold others.
protocol Command: ParsableCommand {
    /// The options that every command has.
    var common: CommonOptions { get }
    /// The settings that this command takes as flags.
    var flags: [SettingKey: String] { get }

    /// The log level unless somebody sets one; nil: the setting's own default.
    var defaultLogLevel: LogLevel? { get }

    /// What is said about settings that can't be read, and the exit code; nil: what every command says.
    func report(_ error: SettingsError, to console: Console) -> CommandStatus?

    /// Does it.
    /// - Throws: `CommandFailure`, or an error that `CommandFailure.init(knownCause:)` knows.
    func run(_ invocation: Invocation) async throws
}

extension Command {
    /// None but those of all commands.
    var flags: [SettingKey: String] { [:] }
    /// The setting's own.
    var defaultLogLevel: LogLevel? { nil }
    /// What every command says.
    func report(_ error: SettingsError, to console: Console) -> CommandStatus? { nil }
}

/// One run of a command: what it finds around it.
struct Invocation: Sendable {
    /// The environment of the process.
    let environment: [String: String]
    /// Where output goes.
    let console: Console
    /// The settings in force.
    let configuration: Configuration

    /// Reads the configuration, starts the log, and warns of a password in the arguments.
    /// - Throws: `SettingsError`.
    init(
        command: any Command,
        environment: [String: String],
        console: Console,
        startLog: (LogLevel, LogFormat) -> Void
    ) throws {
        self.environment = environment
        self.console = console
        self.configuration = try Configuration(
            from: command.common.sources(flags: command.flags, environment: environment)
        )
        _ = try configuration.keySetURL()
        let format = configuration.logFormat ?? .usual(on: console)
        let isLevelSet = configuration.origin(of: .logLevel) != .unset
        let level = isLevelSet ? configuration.logLevel : command.defaultLogLevel ?? configuration.logLevel
        startLog(level, format)
        warnOfPassword()
    }
}

extension Invocation {
    /// The file that holds the database's URL: one of its own, or the configuration file if there is a secret in the URL.
    var databaseURLFile: String? {
        switch configuration.origin(of: .databaseURL) {
        case .secretFile(let variable): environment[variable]
        case .file(let path, _): configuration.hidesPartOfDatabaseURL ? path : nil
        case .flag, .environment, .unset: nil
        }
    }

    /// Warns of a password in the arguments, which all users of the machine can see.
    private func warnOfPassword() {
        guard case .flag(let flag) = configuration.origin(of: .databaseURL), configuration.hidesPartOfDatabaseURL else {
            return
        }
        let key = SettingKey.databaseURL.environmentName
        console.note(
            console.errorStyle.painted("siwad:", .yellow)
                + " warning: other users can see the password of \(flag) in the process list: set \(key) or \(key)_FILE instead"
        )
    }
}

extension Configuration {
    /// Whether the database's URL holds something that is masked.
    fileprivate var hidesPartOfDatabaseURL: Bool {
        entries.first { $0.key == .databaseURL }?.text?.contains(Redaction.mask) ?? false
    }
}

extension LogFormat {
    /// The format where nobody sets one: text on a terminal, else JSON.
    static func usual(on console: Console) -> LogFormat {
        console.errorStyle.width == nil ? .json : .text
    }
}
