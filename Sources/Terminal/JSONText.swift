import Basics

/// A JSON value to print. Objects keep the order of their members.
package indirect enum JSONText: Sendable, Equatable, ExpressibleByStringLiteral, ExpressibleByBooleanLiteral,
    ExpressibleByIntegerLiteral, ExpressibleByNilLiteral
{
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

    package init(stringLiteral value: String) { self = .string(value) }

    package init(booleanLiteral value: Bool) { self = .bool(value) }

    package init(integerLiteral value: Int64) { self = .integer(value) }

    package init(nilLiteral: ()) { self = .null }

    /// `nil` becomes null.
    package init(_ text: String?) { self = text.map { .string($0) } ?? .null }

    /// `nil` becomes null.
    package init(_ value: Bool?) { self = value.map { .bool($0) } ?? .null }

    /// `nil` becomes null.
    package init(_ value: Int64?) { self = value.map { .integer($0) } ?? .null }

    /// The JSON text on one line (RFC 8259). Control and format characters are escaped: they are invisible or change the
    /// appearance of other characters, for example the direction of writing.
    package var line: String {
        var text = ""
        write(to: &text)
        return text
    }

    private func write(to text: inout String) {
        switch self {
        case .string(let string): text.appendJSON(string, escapingInvisible: true)
        case .integer(let integer): text += String(integer)
        case .bool(let bool): text += bool ? "true" : "false"
        case .null: text += "null"
        case .array(let items):
            text += "["
            for (index, item) in items.enumerated() {
                if index > 0 { text += "," }
                item.write(to: &text)
            }
            text += "]"
        case .object(let members):
            text += "{"
            for (index, member) in members.enumerated() {
                if index > 0 { text += "," }
                text.appendJSON(member.name, escapingInvisible: true)
                text += ":"
                member.value.write(to: &text)
            }
            text += "}"
        }
    }
}
