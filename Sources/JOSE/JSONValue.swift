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
        if case .string(let text) = self { text } else { nil }
    }

    /// The value if it is exactly a 64-bit integer.
    package var integer: Int64? {
        guard case .number(let number) = self else { return nil }
        return number.integer
    }

    package var array: [JSONValue]? {
        if case .array(let elements) = self { elements } else { nil }
    }

    package var members: [Member]? {
        if case .object(let members) = self { members } else { nil }
    }
}

extension JSONValue {
    /// The value as JSON without whitespace. Only characters are escaped that JSON requires to be escaped.
    package var compactText: String {
        switch self {
        case .null: "null"
        case .boolean(let value): value ? "true" : "false"
        case .number(let number): number.text
        case .string(let string): Self.quoted(string)
        case .array(let elements): "[\(elements.map(\.compactText).joined(separator: ","))]"
        case .object(let members):
            "{\(members.map { "\(Self.quoted($0.name)):\($0.value.compactText)" }.joined(separator: ","))}"
        }
    }

    /// `text` as a JSON string with its quotes.
    package static func quoted(_ text: String) -> String {
        var quoted = ""
        quoted.appendJSON(text, escapingInvisible: false)
        return quoted
    }
}

package enum JSONKind: String, Sendable, Hashable, CaseIterable {
    case object, array, string, number, boolean, null
}
