import AppleTokens
import ArgumentParser
import Basics
import FoundationEssentials
import Glibc
import Settings
import Telemetry

extension CompletionKind {
    static let eventType = list(AccountEvent.Kind.allCases.map(\.rawValue))
    static let logLevel = list(LogLevel.allCases.map(\.rawValue))
    static let logFormat = list(LogFormat.allCases.map(\.rawValue))
    static let teamID = configured { [$0.team.rawValue] }
    static let appID = configured { [$0.app.rawValue] }
    static let clientID = configured { $0.clients.map(\.rawValue) }

    /// Values of the app groups in the configuration that the command line uses. A shell shows them while a line is typed,
    /// so there are none if the configuration can't be read.
    private static func configured(_ values: @Sendable @escaping (AudienceMap.Group) -> [String]) -> CompletionKind {
        .custom { words, _, _ in configuredGroups(words).flatMap(values).uniqued() }
    }
}

/// The app groups of `SIWAD_APPS`, or else of the file of `--config`.
private func configuredGroups(_ words: [String]) -> [AudienceMap.Group] {
    let environment = ProcessInfo.processInfo.environment
    let sources = SettingsSources(
        environment: environment.filter { $0.key == SettingKey.apps.environmentName },
        configurationFile: file(of: "--config", in: words, home: environment["HOME"]),
        readFile: readRegularFile
    )
    let entries: [Configuration.Entry]
    do throws(SettingsError) {
        entries = try Configuration(from: sources).entries
    } catch {
        entries = error.entries
    }
    let text = entries.first { $0.key == .apps }?.text
    // A malformed list of apps offers nothing.
    return text.flatMap { try? AudienceMap(parsing: $0) }?.groups ?? []
}

/// The file that an option names. The words are as typed: quoted, and `--config=FILE` is three of them in bash.
private func file(of option: String, in words: [String], home: String?) -> String? {
    guard let index = words.lastIndex(where: { $0 == option || $0.hasPrefix(option + "=") }) else { return nil }
    let word =
        words[index] == option
        ? words[(index + 1)...].first { $0 != "=" } : String(words[index].dropFirst(option.count + 1))
    guard let path = word?.filter({ !#"'"\"#.contains($0) }) else { return nil }
    return path.hasPrefix("~/") ? (home ?? "") + path.dropFirst() : path
}

/// Opening a pipe would wait for its writer.
private func readRegularFile(atPath path: String) throws(FileReadingError) -> [UInt8] {
    var status = stat()
    guard stat(path, &status) == 0, status.st_mode & S_IFMT == S_IFREG else {
        throw FileReadingError("not a regular file")
    }
    return try readFile(atPath: path)
}
