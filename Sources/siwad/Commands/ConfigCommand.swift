import ArgumentParser
import Settings
import Telemetry
import Terminal

struct ConfigCommand: DaemonCommand {
    static let configuration = CommandConfiguration(
        commandName: "config",
        abstract: "Print every setting: the value in force, its source and its meaning.",
        discussion: """
            Passwords are masked. Each problem is a line on standard error; then the exit code is 78. A required \
            value may be missing, as on a machine that only runs commands.

            Example:
              siwad config --config /etc/siwad/siwad.yaml
              siwad config --markdown
            """
    )

    @Flag(help: "Print one JSON object per setting.")
    var json = false
    @Flag(help: "Print the reference of all settings as a page of Markdown, without the values in force.")
    var markdown = false
    @OptionGroup var options: DaemonOptions
    @OptionGroup var common: CommonOptions

    func validate() throws {
        guard !json || !markdown else { throw ValidationError("--json and --markdown exclude each other") }
    }

    func report(_ error: SettingsError, to console: Console) -> CommandStatus? {
        print(error.entries, to: console)
        for problem in error.problems { console.report(CommandFailure(.configuration, problem)) }
        return .configuration
    }

    func run(_ invocation: Invocation) async throws {
        guard !markdown else { return invocation.console.print(ConfigurationReference.page) }
        // Reports a connection string that libpq can't parse, although this command does not connect.
        if invocation.configuration.database != .notConfigured { _ = try invocation.configuration.connectionSettings() }
        print(invocation.configuration.entries, to: invocation.console)
    }

    private func print(_ entries: [Configuration.Entry], to console: Console) {
        console.print(ConfigurationListing(entries: entries, defaultLogFormat: .usual(on: console)), asJSON: json)
    }
}

/// Every setting: the value and its source on one line, the meaning below.
struct ConfigurationListing: CommandOutput {
    let entries: [Configuration.Entry]
    let defaultLogFormat: LogFormat

    func lines(style: OutputStyle) -> [String] {
        let margin = (SettingKey.allCases.map(\.environmentName.count).max() ?? 0) + 2
        return entries.flatMap { entry in
            let name = style.painted(entry.key.environmentName, .bold)
            let blanks = String(repeating: " ", count: margin - entry.key.environmentName.count)
            let value = value(of: entry)
            let source = style.painted("(\(VisibleText.visible(entry.origin.description)))", .faint)
            let meaning = VisibleText.wrapped(entry.key.meaning, to: style.width.map { $0 - margin }).map {
                String(repeating: " ", count: margin) + style.painted($0, .faint)
            }
            return ["\(name)\(blanks)\(value)  \(source)"] + meaning
        }
    }

    var json: [JSONText] {
        let columns: [Column<Configuration.Entry>] = [
            .init("key", \.key.rawValue), .init("environment", \.key.environmentName), .init("value", text(of:)),
            .init("source", \.origin.description), .init("meaning", \.key.meaning),
        ]
        return entries.map { entry in
            var members = columns.members(of: entry)
            if let problem = entry.problem { members.append(.init("problem", .string(problem.rawValue))) }
            return .object(members)
        }
    }

    private func text(of entry: Configuration.Entry) -> String? {
        entry.key == .logFormat ? entry.text ?? defaultLogFormat.rawValue : entry.text
    }

    private func value(of entry: Configuration.Entry) -> String {
        let text = text(of: entry).map(VisibleText.visible) ?? "-"
        return switch entry.problem {
        case .none: text
        case .malformed: "\(text)  malformed"
        case .missing: "\(text)  missing, required by siwad serve"
        }
    }
}
