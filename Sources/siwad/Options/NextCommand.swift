import Settings

/// The options of the running command that a command in one of its messages must repeat to use the same settings.
struct GivenOptions: Sendable {
    /// Task-local, because messages are written where no command line is at hand.
    @TaskLocal static var current = GivenOptions()

    private var configurationFile: String?
    private var flags: [SettingKey: String] = [:]

    init() {}

    init(of command: any Command) {
        configurationFile = command.common.config
        flags = command.flags
    }

    /// As on a command line, each after a space: `--config`, and the settings that the next command accepts.
    ///
    /// A connection string is repeated without its password. libpq then reads `PGPASSWORD` or the password file, or the
    /// server refuses the connection. If the string were left out, the command might change the database that the
    /// environment names.
    func text(accepting keys: [SettingKey]) -> String {
        var options = configurationFile.map { [("--config", $0)] } ?? []
        for key in keys {
            if let text = flags[key].map(key.withoutPassword) { options.append((key.flag, text)) }
        }
        return options.map { " \($0) \(Self.quoted($1))" }.joined()
    }

    /// A word for a POSIX shell.
    private static func quoted(_ word: String) -> String {
        let isPlain = word.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || "._/:@%+,=-".contains($0)) }
        if isPlain, !word.isEmpty { return word }
        // Connection strings have single quotes.
        if word.contains("'"), !word.contains(where: { "\"$`\\!".contains($0) }) { return "\"\(word)\"" }
        return "'" + word.replacing("'", with: #"'\''"#) + "'"
    }
}

/// A command for the reader of a message, which runs as printed: `siwad accounts list --config siwad.yaml`.
///
/// - Parameter keys: the settings that it accepts as options.
func nextCommand(_ words: String, accepting keys: [SettingKey] = [.databaseURL]) -> String {
    "siwad \(words)\(GivenOptions.current.text(accepting: keys))"
}
