import ArgumentParser
import Settings

struct CommonOptions: ParsableArguments {
    @Option(help: ArgumentHelp("Configuration file, YAML or JSON.", valueName: "file"), completion: .file())
    var config: String?

    @Option(help: ArgumentHelp("\(SettingKey.logLevel.meaning).", valueName: "level"), completion: .logLevel)
    var logLevel: String?

    func sources(flags: [SettingKey: String], environment: [String: String]) -> SettingsSources {
        var flags = flags
        flags[.logLevel] = logLevel
        return SettingsSources(flags: flags, environment: environment, configurationFile: config)
    }
}

/// Every setting that has a flag as an option, except the log level, which is a common option.
///
/// ArgumentParser finds options by reflection and reads their values by decoding. This type derives both from the
/// declared settings instead of repeating each setting as a property.
struct DaemonOptions: ParsableArguments, CustomReflectable {
    private static let keys = SettingKey.allCases.filter { $0.hasFlag && $0 != .logLevel }
    private static let completions: [SettingKey: CompletionKind] = [
        .tlsCertificate: .file(), .tlsKey: .file(), .applicationTLSCertificate: .file(), .applicationTLSKey: .file(),
        .spoolDirectory: .directory, .logFormat: .logFormat,
    ]
    /// The options without values, made once: ArgumentParser creates this type several times for each command line.
    private static let declared = Dictionary(
        uniqueKeysWithValues: keys.map { key in
            let defaultText = key.defaultText.map { " (default: \($0))" } ?? ""
            let name = NameSpecification.customLong(String(key.flag.dropFirst(2)))
            let help = ArgumentHelp(stringLiteral: key.meaning + defaultText)
            return (key, Option<String?>(name: name, help: help, completion: completions[key]))
        }
    )
    private var options = Self.declared

    init() {}

    init(from decoder: any Decoder) throws {
        let container = try decoder.container(keyedBy: Name.self)
        for key in Self.keys {
            options[key] = try container.decode(Option<String?>.self, forKey: Name(stringValue: key.rawValue))
        }
    }

    var customMirror: Mirror {
        Mirror(self, children: Self.keys.map { (label: "_" + $0.rawValue, value: options[$0] as Any) })
    }

    var flags: [SettingKey: String] { options.compactMapValues(\.wrappedValue) }

    private struct Name: CodingKey {
        let stringValue: String
        var intValue: Int? { nil }

        init(stringValue: String) { self.stringValue = stringValue }
        init?(intValue: Int) { nil }
    }
}

struct DatabaseOptions: ParsableArguments {
    @Option(
        help: ArgumentHelp("libpq URI or connection string; a password is safer in the environment.", valueName: "url")
    )
    var databaseURL: String?
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { databaseURL.map { [.databaseURL: $0] } ?? [:] }
}

/// The options of the commands that use the database and the settings that decide which notifications are accepted.
struct AcceptanceOptions: ParsableArguments {
    @Option(help: ArgumentHelp("Accepted apps, as in SIWAD_APPS.", valueName: "apps"))
    var apps: String?
    @Option(help: ArgumentHelp("Apple's key set, as in SIWAD_KEYS_URL.", valueName: "url"))
    var keysURL: String?
    @OptionGroup var database: DatabaseOptions

    var flags: [SettingKey: String] {
        var flags = database.flags
        flags[.apps] = apps
        flags[.keysURL] = keysURL
        return flags
    }
}
