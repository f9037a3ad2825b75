import Settings
import Terminal

/// Every setting for a reader: the value and its source on one line, the meaning below.
struct ConfigurationListing {
    /// The settings, in the order in which they are shown.
    let entries: [Configuration.Entry]

    /// Two lines or more for each, within the width.
    func lines(style: OutputStyle) -> [String] {
        let margin = (SettingKey.allCases.map(\.environmentName.count).max() ?? 0) + 2
        return entries.flatMap { entry in
            let name = style.painted(entry.key.environmentName, .bold)
            let blanks = String(repeating: " ", count: margin - entry.key.environmentName.count)
            let value = VisibleText.visible(entry.text ?? "-")
            let source = style.painted("(\(VisibleText.visible(entry.origin.description)))", .faint)
            let meaning = VisibleText.wrapped(entry.key.meaning, to: style.width.map { $0 - margin }).map {
                String(repeating: " ", count: margin) + style.painted($0, .faint)
            }
            return ["\(name)\(blanks)\(value)  \(source)"] + meaning
        }
    }

    /// An object for each.
    var json: [JSONText] {
        entries.map { entry in
            .object([
                .init("key", .string(entry.key.rawValue)),
                .init("environment", .string(entry.key.environmentName)),
                .init("value", JSONText(entry.text)),
                .init("source", .string(entry.origin.description)),
                .init("meaning", .string(entry.key.meaning)),
            ])
        }
    }
}
