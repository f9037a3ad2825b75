import Settings
import Telemetry
import Terminal

/// Every setting for a reader: the value and its source on one line, the meaning below.
struct ConfigurationListing {
    /// The settings, in the order in which they are shown.
    let entries: [Configuration.Entry]
    /// The format of the log where nobody set it.
    let usualLogFormat: LogFormat

    /// Two lines or more for each, within the width.
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

    private func text(of entry: Configuration.Entry) -> String? {
        entry.key == .logFormat ? entry.text ?? usualLogFormat.rawValue : entry.text
    }

    private func value(of entry: Configuration.Entry) -> String {
        let text = text(of: entry).map(VisibleText.visible) ?? "-"
        return switch entry.problem {
        case .none: text
        case .malformed: "\(text)  malformed"
        case .missing: "\(text)  missing, required by siwad serve"
        }
    }

    /// An object for each; with a member `problem` where there is one.
    var json: [JSONText] {
        entries.map { entry in
            let problem = entry.problem.map { [JSONText.Member("problem", .string($0.rawValue))] } ?? []
            return .object(
                [
                    .init("key", .string(entry.key.rawValue)),
                    .init("environment", .string(entry.key.environmentName)),
                    .init("value", JSONText(text(of: entry))),
                    .init("source", .string(entry.origin.description)),
                    .init("meaning", .string(entry.key.meaning)),
                ] + problem
            )
        }
    }
}
