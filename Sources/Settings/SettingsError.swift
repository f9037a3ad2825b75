/// What is wrong with the configuration: every problem found, each in one line that names the key and the next step.
package struct SettingsError: Error, Sendable, Equatable, CustomStringConvertible {
    /// At least one line, in the order of the settings.
    package let problems: [String]
    /// The settings as far as they were found, for whoever lists them all the same; empty where nobody looked.
    package let entries: [Configuration.Entry]

    /// An error of these problems.
    package init(problems: [String], entries: [Configuration.Entry] = []) {
        self.problems = problems
        self.entries = entries
    }

    /// An error of one problem.
    package init(_ problem: String) {
        self.init(problems: [problem])
    }

    /// Whether both have the same problems.
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

/// A text that is not a value of its setting; says what would be.
struct MalformedValue: Error, Equatable {
    /// The next step: `write a duration such as 1h or 60s`.
    let advice: String
    /// Where the advice quotes the value itself, so that the message need not: advice that doesn't, for a value that must
    /// not be shown.
    let plainAdvice: String?

    init(_ advice: String, plainAdvice: String? = nil) {
        self.advice = advice
        self.plainAdvice = plainAdvice
    }
}
