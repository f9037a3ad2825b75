import Basics

/// A JSON value to print. Objects keep the order of their members.
package indirect enum JSONText: Sendable, Equatable {
    case string(String)
    case integer(Int64)
    case bool(Bool)
    case null
    case array([JSONText])
    case object([Member])

    package struct Member: Sendable, Equatable {
        package let name: String
        package let value: JSONText

        package init(_ name: String, _ value: JSONText) {
            self.name = name
            self.value = value
        }
    }

    /// The JSON text on one line (RFC 8259). Control and format characters are escaped: they are invisible or change the
    /// appearance of other characters, for example the direction of writing.
    package var line: String {
        switch self {
        case .string(let string): Self.quoted(string)
        case .integer(let integer): String(integer)
        case .bool(let bool): bool ? "true" : "false"
        case .null: "null"
        case .array(let items): "[" + items.map(\.line).joined(separator: ",") + "]"
        case .object(let members):
            "{" + members.map { Self.quoted($0.name) + ":" + $0.value.line }.joined(separator: ",") + "}"
        }
    }

    private static func quoted(_ text: String) -> String {
        var quoted = ""
        quoted.appendJSON(text, escapingInvisible: true)
        return quoted
    }
}
