/// What is wrong with the configuration.
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

    /// The first problem, and how many others there are.
    package var description: String {
        let first = problems.first ?? "the configuration is wrong"
        switch problems.count {
        case ...1: return first
        case 2: return first + " (and 1 more problem: siwad config lists all)"
        default: return first + " (and \(problems.count - 1) more problems: siwad config lists all)"
        }
    }
}
