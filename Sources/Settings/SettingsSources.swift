package import Basics

/// The places where settings come from, strongest first: flags, environment, file. Nothing here reads the world by itself.
package struct SettingsSources: Sendable {
    /// Values given as flags.
    package var flags: [SettingKey: String]
    /// The whole environment of the process.
    package var environment: [String: String]
    /// The path that `--config` named.
    package var configurationFile: String?
    /// Reads a file, or throws an error whose text says why it can't be read.
    package var readFile: FileReader

    /// The sources that these are.
    package init(
        flags: [SettingKey: String] = [:],
        environment: [String: String],
        configurationFile: String? = nil,
        readFile: @escaping FileReader = readFile(atPath:)
    ) {
        self.flags = flags
        self.environment = environment
        self.configurationFile = configurationFile
        self.readFile = readFile
    }
}
