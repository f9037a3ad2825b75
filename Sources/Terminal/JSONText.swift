import Basics

/// A JSON value to print, its members in the order in which they were given.
package indirect enum JSONText: Sendable, Equatable, ExpressibleByStringLiteral, ExpressibleByBooleanLiteral,
    ExpressibleByIntegerLiteral, ExpressibleByNilLiteral
{
    case string(String)
    case integer(Int64)
    case bool(Bool)
    case null
    case array([JSONText])
    case object([Member])

    /// A member of an object.
    package struct Member: Sendable, Equatable {
        /// Its name.
        package let name: String
        /// Its value.
        package let value: JSONText

        /// A member of this name.
        package init(_ name: String, _ value: JSONText) {
            self.name = name
            self.value = value
        }
    }

    /// A string.
    package init(stringLiteral value: String) { self = .string(value) }

    /// A truth value.
    package init(booleanLiteral value: Bool) { self = .bool(value) }

    /// A whole number.
    package init(integerLiteral value: Int64) { self = .integer(value) }

    /// Nothing.
    package init(nilLiteral: ()) { self = .null }

    /// A string, or null.
    package init(_ text: String?) { self = text.map { .string($0) } ?? .null }

    /// A truth value, or null.
    package init(_ value: Bool?) { self = value.map { .bool($0) } ?? .null }

    /// A whole number, or null.
    package init(_ value: Int64?) { self = value.map { .integer($0) } ?? .null }

    /// The text on one line (RFC 8259). What can't be seen, or changes how other characters are seen, is escaped: control
    /// and format characters, of which some turn the direction of writing.
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
