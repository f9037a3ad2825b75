import Basics

extension JSONValue {
    /// The value as compact JSON: no whitespace, members in their order, only what must be escaped is escaped.
    package var compactText: String {
        var text = ""
        write(to: &text)
        return text
    }

    /// `text` as a JSON string, with its quotes.
    package static func quoted(_ text: String) -> String {
        var quoted = ""
        quoted.appendJSON(text, escapingInvisible: false)
        return quoted
    }

    private func write(to text: inout String) {
        switch self {
        case .null: text += "null"
        case .boolean(let value): text += value ? "true" : "false"
        case .number(let number): text += number.text
        case .string(let string): text += Self.quoted(string)
        case .array(let elements):
            text += "["
            for (index, element) in elements.enumerated() {
                if index > 0 { text += "," }
                element.write(to: &text)
            }
            text += "]"
        case .object(let members):
            text += "{"
            for (index, member) in members.enumerated() {
                if index > 0 { text += "," }
                text += Self.quoted(member.name) + ":"
                member.value.write(to: &text)
            }
            text += "}"
        }
    }
}
