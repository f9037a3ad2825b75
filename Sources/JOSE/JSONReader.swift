/// Reads strict JSON value by value, forwards, without building a tree.
///
/// Strict means RFC 8259 without the choices that it leaves to parsers: UTF-8 without a byte order mark, unique member names
/// after decoding, at most 32 levels and 64 members an object, no NUL, no lone surrogates, nothing after the value. Skipped
/// values are checked as strictly as read ones. Every method throws `malformedJSON` for other text, and `typeMismatch` if the
/// value has another type than the requested one.
///
/// Read or skip exactly one value after `nextMember()` or `nextElement()` returned true; anything else throws and never traps.
package struct JSONReader: ~Copyable {
    package static let maximumDepth = 32
    /// Bounds the cost of comparing each name with those before it. Real tokens and key sets have at most a dozen members.
    package static let maximumMembers = 64

    private let bytes: [UInt8]
    private var position = 0
    private var depth = 0
    /// True directly after opening a container, where no comma is allowed.
    private var isAtStart = false
    private var names = JSONMemberNames()

    package init(_ bytes: [UInt8]) {
        self.bytes = bytes
    }

    /// Returns the type of the next value by its first byte and reads only whitespace.
    package mutating func kind() throws(JOSEError) -> JSONKind {
        skipWhitespace()
        guard position < bytes.count else { throw malformed("the JSON text ends where a value is expected") }
        switch bytes[position] {
        case UInt8(ascii: "{"): return .object
        case UInt8(ascii: "["): return .array
        case UInt8(ascii: "\""): return .string
        case UInt8(ascii: "t"), UInt8(ascii: "f"): return .boolean
        case UInt8(ascii: "n"): return .null
        case UInt8(ascii: "-"), UInt8(ascii: "0")...UInt8(ascii: "9"): return .number
        case 0xEF where position == 0: throw malformed("the JSON text begins with a byte order mark")
        default: throw malformed("a JSON value is expected")
        }
    }

    package mutating func beginObject() throws(JOSEError) {
        try open(.object)
        names.beginObject()
    }

    /// Moves to the next member's value; returns false and leaves the object at its end.
    package mutating func nextMember() throws(JOSEError) -> Bool {
        guard try advance(to: UInt8(ascii: "}")) else {
            names.endObject()
            return false
        }
        guard position < bytes.count, bytes[position] == UInt8(ascii: "\"") else {
            throw malformed("a member name is expected")
        }
        let name = try scanString()
        try names.append(name, of: bytes)
        skipWhitespace()
        guard position < bytes.count, bytes[position] == UInt8(ascii: ":") else {
            throw malformed("a colon is expected after a member name")
        }
        position += 1
        return true
    }

    /// Compares the name of the current member. Call it before reading the value.
    package func nameIs(_ name: StaticString) -> Bool {
        names.lastEquals(name)
    }

    /// The name of the current member. Call it before reading the value.
    package func memberName() -> String {
        String(decoding: names.last ?? [], as: UTF8.self)
    }

    package mutating func beginArray() throws(JOSEError) {
        try open(.array)
    }

    /// Moves to the next element; returns false and leaves the array at its end.
    package mutating func nextElement() throws(JOSEError) -> Bool {
        try advance(to: UInt8(ascii: "]"))
    }

    /// Throws unless the whole text was read.
    package mutating func end() throws(JOSEError) {
        skipWhitespace()
        guard depth == 0, position == bytes.count else { throw malformed("something follows the JSON value") }
    }

    private mutating func open(_ container: JSONKind) throws(JOSEError) {
        try expect(container)
        guard depth < Self.maximumDepth else { throw malformed("JSON is nested deeper than 32 levels") }
        depth += 1
        position += 1
        isAtStart = true
    }

    /// Skips the comma before the next item, or leaves the container at `close`.
    private mutating func advance(to close: UInt8) throws(JOSEError) -> Bool {
        skipWhitespace()
        guard position < bytes.count, depth > 0 else { throw malformed("a JSON object or array is not closed") }
        if bytes[position] == close {
            position += 1
            depth -= 1
            isAtStart = false
            return false
        }
        if isAtStart {
            isAtStart = false
            return true
        }
        guard bytes[position] == UInt8(ascii: ",") else { throw malformed("a comma or an end is expected") }
        position += 1
        skipWhitespace()
        guard position < bytes.count, bytes[position] != close else { throw malformed("a comma ends the list") }
        return true
    }

    private mutating func skipWhitespace() {
        while position < bytes.count {
            switch bytes[position] {
            case 0x20, 0x0A, 0x0D, 0x09: position += 1
            default: return
            }
        }
    }

    private func malformed(_ message: String) -> JOSEError {
        JOSEError(.malformedJSON, message, at: position)
    }
}

// MARK: - Values

extension JSONReader {
    package mutating func string() throws(JOSEError) -> String {
        try expect(.string)
        return try scanString().text(of: bytes)
    }

    /// Reads a string as UTF-8.
    package mutating func utf8() throws(JOSEError) -> [UInt8] {
        try expect(.string)
        return try scanString().content(of: bytes)
    }

    package mutating func boolean() throws(JOSEError) -> Bool {
        try expect(.boolean)
        let isTrue = bytes[position] == UInt8(ascii: "t")
        try scanWord(isTrue ? "true" : "false")
        return isTrue
    }

    /// Reads a string, or skips another value and returns nil.
    package mutating func stringOrSkip() throws(JOSEError) -> String? {
        guard try kind() == .string else {
            try skipValue()
            return nil
        }
        return try string()
    }

    /// Reads a 64-bit integer, such as `1500` or `1.5e3`, or skips another value and returns nil.
    package mutating func integerOrSkip() throws(JOSEError) -> Int64? {
        guard try kind() == .number else {
            try skipValue()
            return nil
        }
        return try scanNumber().integer(of: bytes)
    }

    package mutating func skipValue() throws(JOSEError) {
        switch try kind() {
        case .object:
            try beginObject()
            while try nextMember() { try skipValue() }
        case .array:
            try beginArray()
            while try nextElement() { try skipValue() }
        case .string: _ = try scanString()
        case .number: _ = try scanNumber()
        case .boolean: _ = try boolean()
        case .null: try scanWord("null")
        }
    }

    /// Reads a value of any type as a tree.
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
            return .number(JSONNumber(try scanNumber(), of: bytes))
        case .boolean: return .boolean(try boolean())
        case .null:
            try scanWord("null")
            return .null
        }
    }

    private mutating func expect(_ wanted: JSONKind) throws(JOSEError) {
        let found = try kind()
        guard found == wanted else {
            let message = "a JSON \(wanted.rawValue) is expected, not a \(found.rawValue)"
            throw JOSEError(.typeMismatch, message, at: position)
        }
    }

    private mutating func scanString() throws(JOSEError) -> JSONStringToken {
        let token = try JSONStringToken(scanning: bytes.span, from: position)
        position = token.end + 1
        return token
    }

    private mutating func scanNumber() throws(JOSEError) -> JSONNumberToken {
        let token = try JSONNumberToken(scanning: bytes.span, from: position)
        position = token.end
        return token
    }

    private mutating func scanWord(_ word: StaticString) throws(JOSEError) {
        guard word.equals(bytes.span, at: position, count: word.utf8CodeUnitCount) else {
            throw malformed("a JSON value is expected")
        }
        position += word.utf8CodeUnitCount
    }
}

extension StaticString {
    /// Compares the `count` bytes of `bytes` from `start` with this text.
    func equals(_ bytes: Span<UInt8>, at start: Int, count: Int) -> Bool {
        guard start <= bytes.count - count else { return false }
        return withUTF8Buffer { text in
            guard text.count == count else { return false }
            for index in 0..<count where unsafe bytes[start &+ index] != text[index] { return false }
            return true
        }
    }
}
