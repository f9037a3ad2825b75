import Basics

/// A JSON value to print. Objects keep the order of their members.
package indirect enum JSONText: Sendable, Equatable {
    case string(String)
    case integer(Int64)
    /// Without a fraction if it has none; null if it is infinite or not a number.
    case number(Double)
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
        var line = ""
        append(to: &line)
        return line
    }

    private func append(to line: inout String) {
        switch self {
        case .string(let string): line.appendJSON(string, escapingInvisible: true)
        case .integer(let integer): line.append(String(integer))
        case .number(let number):
            line.append(Int64(exactly: number).map { String($0) } ?? (number.isFinite ? "\(number)" : "null"))
        case .bool(let bool): line.append(bool ? "true" : "false")
        case .null: line.append("null")
        case .array(let items):
            var separator = "["
            for item in items {
                line.append(separator)
                item.append(to: &line)
                separator = ","
            }
            line.append(items.isEmpty ? "[]" : "]")
        case .object(let members):
            var separator = "{"
            for member in members {
                line.append(separator)
                line.appendJSON(member.name, escapingInvisible: true)
                line.append(":")
                member.value.append(to: &line)
                separator = ","
            }
            line.append(members.isEmpty ? "{}" : "}")
        }
    }
}
