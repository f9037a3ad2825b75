import Basics

/// A JSON value as a tree, parsed by the rules of `JSONReader`, for texts whose speed does not matter.
package indirect enum JSONValue: Sendable, Hashable {
    package struct Member: Sendable, Hashable {
        package let name: String
        package let value: JSONValue

        package init(_ name: String, _ value: JSONValue) {
            self.name = name
            self.value = value
        }
    }

    case null
    case boolean(Bool)
    case number(JSONNumber)
    case string(String)
    case array([JSONValue])
    /// The members in the order of the text.
    case object([Member])

    /// - Throws: `malformedJSON`.
    package init(parsing bytes: [UInt8]) throws(JOSEError) {
        var reader = JSONReader(bytes)
        self = try reader.value()
        try reader.end()
    }

    package subscript(_ name: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        return members.first { $0.name == name }?.value
    }

    package var kind: JSONKind {
        switch self {
        case .null: .null
        case .boolean: .boolean
        case .number: .number
        case .string: .string
        case .array: .array
        case .object: .object
        }
    }

    package var string: String? {
        guard case .string(let text) = self else { return nil }
        return text
    }

    /// The value if it is exactly a 64-bit integer.
    package var integer: Int64? {
        guard case .number(let number) = self else { return nil }
        return number.integer
    }

    package var array: [JSONValue]? {
        guard case .array(let elements) = self else { return nil }
        return elements
    }

    package var members: [Member]? {
        guard case .object(let members) = self else { return nil }
        return members
    }
}

extension JSONValue {
    /// The value as JSON without whitespace. Only characters are escaped that JSON requires to be escaped.
    package var compactText: String {
        var text = ""
        write(to: &text)
        return text
    }

    /// `text` as a JSON string with its quotes.
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

package enum JSONKind: String, Sendable, Hashable, CaseIterable {
    case object, array, string, number, boolean, null
}
