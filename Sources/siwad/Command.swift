import ArgumentParser
import Basics
import JOSE
import Settings
import Telemetry
import Terminal

/// A command that runs. Commands that only contain subcommands do not conform.
protocol Command: ParsableCommand {
    var common: CommonOptions { get }
    var flags: [SettingKey: String] { get }

    /// False if it works without settings, also where these are malformed or not there yet.
    var needsSettings: Bool { get }

    /// The log level if no source sets one; nil: the default of the setting.
    var defaultLogLevel: LogLevel? { get }

    /// Reports malformed settings and returns the exit code; nil: the usual error line.
    func report(_ error: SettingsError, to console: Console) -> CommandStatus?

    /// - Throws: `CommandFailure`, or an error that `CommandFailure.init(knownCause:)` knows.
    func run(_ invocation: Invocation) async throws
}

extension Command {
    var flags: [SettingKey: String] { [:] }
    var needsSettings: Bool { true }
    var defaultLogLevel: LogLevel? { nil }
    func report(_ error: SettingsError, to console: Console) -> CommandStatus? { nil }
}

struct Invocation: Sendable {
    let environment: [String: String]
    let console: Console
    let configuration: Configuration

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
            from: command.needsSettings
                ? command.common.sources(flags: command.flags, environment: environment)
                : SettingsSources(environment: [:])
        )
        _ = try configuration.keySetURL()
        _ = try configuration.appleBase()
        let format = configuration.logFormat ?? .usual(on: console)
        let usualLevel = configuration.origin(of: .logLevel) == .unset ? command.defaultLogLevel : nil
        startLog(usualLevel ?? configuration.logLevel, format)
        warnOfPassword()
    }

    /// The files that `…_FILE` variables name, and the configuration file if it contains a secret.
    var secretFiles: [String] {
        SettingKey.allCases.filter(\.isSecret).compactMap { key in
            switch configuration.origin(of: key) {
            case .secretFile(let variable): environment[variable]
            case .file(let path, _): key == .databaseURL && !hidesPartOfDatabaseURL ? nil : path
            case .flag, .environment, .credential, .unset: nil
            }
        }.uniqued()
    }

    /// Warns of a password in the arguments: all users of the machine can see it.
    private func warnOfPassword() {
        guard case .flag(let flag) = configuration.origin(of: .databaseURL), hidesPartOfDatabaseURL else { return }
        let key = SettingKey.databaseURL.environmentName
        console.note(
            console.errorStyle.painted("siwad:", .yellow)
                + " warning: other users can see the password of \(flag) in the process list: set \(key) or \(key)_FILE instead"
        )
    }

    private var hidesPartOfDatabaseURL: Bool {
        configuration.entries.first { $0.key == .databaseURL }?.text?.contains(Redaction.mask) ?? false
    }
}

extension LogFormat {
    /// The format if no source sets one.
    static func usual(on console: Console) -> LogFormat {
        console.errorStyle.width == nil ? .json : .text
    }
}

/// Runs one command line and turns every error into one line and an exit code.
struct CommandRunner {
    let environment: [String: String]
    let console: Console
    /// Starts the log of the process, which is possible only once.
    let startLog: @Sendable (LogLevel, LogFormat) -> Void

    func run(_ arguments: [String]) async -> CommandStatus {
        let status: CommandStatus
        do {
            status = try await carryOut(arguments)
        } catch {
            status = report(error, arguments)
        }
        guard let error = console.outputError else { return status }
        let cause = "standard output can't be written: \(error.cause); the output is incomplete"
        console.report(CommandFailure(.failed, cause))
        return status == .done ? .failed : status
    }

    private func carryOut(_ arguments: [String]) async throws -> CommandStatus {
        guard Set(arguments) != ["--version", "--json"] else {
            console.print(Version(), asJSON: true)
            return .done
        }
        // The parser's help command prints the help of the last command that it knows.
        if arguments.first == "help", let unknown = Self.unknownCommand(Array(arguments.dropFirst())) {
            throw CommandFailure(.usage, unknown)
        }
        var parsed = try Siwad.parseAsRoot(arguments)
        guard let command = parsed as? any Command else {
            // Commands that only contain subcommands print their help.
            try parsed.run()
            return .done
        }
        if let option = Self.repeatedOption(of: type(of: command), arguments) {
            throw CommandFailure(.usage, "\(option) takes one value and is given twice: run the command for each value")
        }
        return await GivenOptions.$current.withValue(GivenOptions(of: command)) {
            do {
                try await command.run(
                    Invocation(command: command, environment: environment, console: console, startLog: startLog)
                )
                return .done
            } catch {
                let status = (error as? SettingsError).flatMap { command.report($0, to: console) }
                return status ?? report(error, arguments)
            }
        }
    }

    /// An option that takes one value and has several, if the command takes a note, because it changes something: the parser
    /// takes the last value, and what the operator meant with the others would be left as it is.
    private static func repeatedOption(of command: any Command.Type, _ arguments: [String]) -> String? {
        let given = arguments.prefix { $0 != "--" }.filter { $0.hasPrefix("--") }.map { $0.prefix { $0 != "=" } }
        let repeated = Set(given.filter { option in given.count { $0 == option } > 1 }.map { $0.dropFirst(2) })
        guard !repeated.isEmpty, let help = try? JSONValue(parsing: Array(command._dumpHelp().utf8)) else { return nil }
        let options = (help["command"]?["arguments"]?.array ?? []).filter { $0["kind"]?.string == "option" }
        func names(_ option: JSONValue) -> [String] { option["names"]?.array?.compactMap { $0["name"]?.string } ?? [] }
        guard options.contains(where: { names($0) == ["note"] }) else { return nil }
        let single = options.filter { $0["isRepeating"] == .boolean(false) }.flatMap(names)
        return single.first { repeated.contains($0[...]) }.map { "--\($0)" }
    }

    private func report(_ error: any Error, _ arguments: [String]) -> CommandStatus {
        if let failure = error as? CommandFailure ?? CommandFailure(knownCause: error) {
            console.report(failure)
            return failure.status
        }
        switch Siwad.exitCode(for: error) {
        case .success:
            // The parser takes an id such as -Nx_h for the short options -N, -x, -_ and -h.
            if !arguments.contains(where: Self.helpWords.contains),
                let cluster = Self.cluster(in: arguments, afterOptions: true)
            {
                console.report(CommandFailure(.usage, cluster))
                return .usage
            }
            console.print(Siwad.fullMessage(for: error))
            return .done
        // A shell asks for completions while the operator types.
        case _ where arguments.first == "---completion":
            return .failed
        case .validationFailure:
            console.report(CommandFailure(.usage, Self.usage(error, arguments)))
            return .usage
        default:
            console.report(CommandFailure(.failed, "\(error)"))
            return .failed
        }
    }

    /// Cause and place of the help in one line: `Unknown option '--tpye': see 'siwad simulate token --help'`. An argument
    /// that looks like a secret is masked.
    private static func usage(_ error: any Error, _ arguments: [String]) -> String {
        if let unknown = unknownCommand(arguments) { return unknown }
        // The parser knows better what -json means.
        if !Siwad.message(for: error).contains("Did you mean"), let cluster = cluster(in: arguments) { return cluster }
        var message = missing(error, arguments) ?? Siwad.message(for: error)
        // Of --name=value, a message quotes the value.
        let words = arguments.map { $0.hasPrefix("--") ? $0.drop { $0 != "=" }.dropFirst() : $0[...] }
        for argument in words where Redaction.holdsSecret(argument) {
            message = message.split(separator: argument, omittingEmptySubsequences: false).joined(
                separator: Redaction.mask
            )
        }
        // A long list of values has a line for each.
        let values = message.replacing(":\n  - ", with: ": ").replacing("\n  - ", with: ", ")
        let cause = values.split(whereSeparator: \.isNewline).joined(separator: " ")
        let help = Siwad.fullMessage(for: error).split(whereSeparator: \.isNewline).last { $0.contains("See '") }
        let sentence = cause.hasSuffix(".") ? String(cause.dropLast()) : cause
        guard let help, let start = help.firstIndex(of: "'"), let end = help.lastIndex(of: "'") else { return sentence }
        return "\(sentence): see \(help[start...end])"
    }

    private static let helpWords: Set<String> = ["-h", "--help", "-help", "help", "--version"]

    /// The error about a value that the parser takes for several short options; siwad has none but -h.
    ///
    /// - Parameter afterOptions: whether a word after an option may be meant, which is usually the option's value.
    private static func cluster(in arguments: [String], afterOptions: Bool = false) -> String? {
        let words = Array(arguments.prefix { $0 != "--" })
        for (position, word) in words.enumerated() where word.utf8.count > 2 && word.hasPrefix("-") {
            let isValue = position > 0 && words[position - 1].hasPrefix("--") && !words[position - 1].contains("=")
            guard !word.hasPrefix("--"), !isValue || afterOptions else { continue }
            return
                "'\(Redaction.redacted(word))' begins with a hyphen: write --id before it if the command has that option, or write it last, after --"
        }
        return nil
    }

    /// The error about a word that names no command, with the command that it probably misspells. The parser reports a later
    /// option instead, or calls the word an argument.
    private static func unknownCommand(_ arguments: [String]) -> String? {
        var command: any ParsableCommand.Type = Siwad.self
        var path = "siwad"
        for word in arguments {
            let children = command.configuration.subcommands
            guard !children.isEmpty, !word.hasPrefix("-"), word != "help" else { return nil }
            guard let child = children.first(where: { $0._commandName == word }) else {
                guard let meant = word.nearest(in: children.map { $0._commandName }) else {
                    return "Unknown command '\(Redaction.redacted(word))': see '\(path) --help'"
                }
                return "Unknown command '\(word)': did you mean \"\(meant)\"?"
            }
            (command, path) = (child, "\(path) \(word)")
        }
        return nil
    }

    /// The error about all missing options and arguments; nil for another error. The parser reports the first, so the command
    /// line is parsed again with a value for each.
    private static func missing(_ error: any Error, _ arguments: [String]) -> String? {
        var (error, arguments, names) = (error, arguments, [String]())
        while let match = Siwad.message(for: error).wholeMatch(of: /Missing expected argument '((--[^ ]+)?.*)'/),
            !names.contains(String(match.1))
        {
            names.append(String(match.1))
            arguments += [match.2.map(String.init), "0"].compactMap(\.self)
            do {
                _ = try Siwad.parseAsRoot(arguments)
            } catch let next {
                error = next
            }
        }
        guard names.count > 1 else { return nil }
        return "Missing expected arguments " + names.map { "'\($0)'" }.joined(separator: ", ")
    }
}
