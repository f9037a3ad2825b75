package struct SettingsError: Error, Sendable, Equatable, CustomStringConvertible {
    /// At least one line that names a setting and the next step, in the order of the settings.
    package let problems: [String]
    /// The settings as far as they could be read, for a command that lists them despite the error.
    package let entries: [Configuration.Entry]

    package init(problems: [String], entries: [Configuration.Entry] = []) {
        self.problems = problems
        self.entries = entries
    }

    package init(_ problem: String) {
        self.init(problems: [problem])
    }

    package static func == (one: SettingsError, other: SettingsError) -> Bool {
        one.problems == other.problems
    }

    package var description: String { description(listedBy: "siwad config") }

    /// The first problem, and how many others there are.
    ///
    /// - Parameter command: lists all problems.
    package func description(listedBy command: String) -> String {
        let first = problems.first ?? "the configuration is wrong"
        guard problems.count > 1 else { return first }
        let more = "\(problems.count - 1) more problem\(problems.count == 2 ? "" : "s")"
        return "\(first) (and \(more): \(command) lists all)"
    }
}
