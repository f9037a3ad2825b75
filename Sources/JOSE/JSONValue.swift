/// A JSON value as a tree, for what is not worth reading value by value: key sets and explanations.
///
/// Parsed by `JSONReader` and therefore held to its rules.
package indirect enum JSONValue: Sendable, Hashable {
    /// A member of an object.
    package struct Member: Sendable, Hashable {
        /// The name, escapes undone.
        package let name: String
        /// The value.
        package let value: JSONValue

        /// Makes a member.
        package init(_ name: String, _ value: JSONValue) {
            self.name = name
            self.value = value
        }
    }

    /// `null`
    case null
    /// `true` or `false`
    case boolean(Bool)
    /// A number.
    case number(JSONNumber)
    /// A string, escapes undone.
    case string(String)
    /// An array.
    case array([JSONValue])
    /// An object, its members in the order of the text.
    case object([Member])

    /// The value that `bytes` spell.
    ///
    /// - Throws: `malformedJSON`.
    package init(parsing bytes: [UInt8]) throws(JOSEError) {
        var reader = JSONReader(bytes)
        self = try reader.value()
        try reader.end()
    }

    /// The value of the member with this name, if this is an object that has it.
    package subscript(_ name: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        return members.first { $0.name == name }?.value
    }

    /// The type of the value.
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

    /// The text, if this is a string.
    package var string: String? {
        guard case .string(let text) = self else { return nil }
        return text
    }

    /// The value, if this is a number that is exactly a 64-bit integer.
    package var integer: Int64? {
        guard case .number(let number) = self else { return nil }
        return number.integer
    }

    /// The value, if this is a boolean.
    package var boolean: Bool? {
        guard case .boolean(let value) = self else { return nil }
        return value
    }

    /// The elements, if this is an array.
    package var array: [JSONValue]? {
        guard case .array(let elements) = self else { return nil }
        return elements
    }

    /// The members, if this is an object.
    package var members: [Member]? {
        guard case .object(let members) = self else { return nil }
        return members
    }
}

extension JSONReader {
    /// Reads a value of any type into a tree.
    ///
    /// - Throws: `malformedJSON`.
    package mutating func value() throws(JOSEError) -> JSONValue {
        switch try kind() {
        case .object:
            var members: [JSONValue.Member] = []
            try beginObject()
            while try nextMember() {
                let name = memberName()
                members.append(JSONValue.Member(name, try value()))
            }
            return .object(members)
        case .array:
            var elements: [JSONValue] = []
            try beginArray()
            while try nextElement() { elements.append(try value()) }
            return .array(elements)
        case .string: return .string(try string())
        case .number:
            let token = try scanNumber()
            return .number(JSONNumber(token, of: bytes))
        case .boolean: return .boolean(try boolean())
        case .null:
            try scanWord("null")
            return .null
        }
    }
}
