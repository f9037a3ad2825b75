/// Reads one strict JSON text value by value, forwards, without building a tree.
///
/// Strict means RFC 8259 with what it leaves open closed: UTF-8 without a byte order mark, member names unique within an
/// object after their escapes are undone, at most 32 levels and 64 members an object, no NUL in either spelling, no lone
/// surrogates, nothing after the value. What is skipped is held to the same rules as what is read.
///
/// ```swift
/// var reader = JSONReader(bytes)
/// try reader.beginObject()
/// while try reader.nextMember() {
///     if reader.nameIs("iss") {
///         issuer = try reader.string()
///     } else {
///         try reader.skipValue()
///     }
/// }
/// try reader.end()
/// ```
///
/// After `nextMember()` or `nextElement()` returns true exactly one value is to be read or skipped; anything else ends in a
/// thrown error, never in a trap.
package struct JSONReader: ~Copyable {
    /// The deepest nesting that is read.
    package static let maximumDepth = 32

    /// Bounds the cost of comparing each name with those before it. Real tokens and key sets have at most a dozen members.
    package static let maximumMembers = 64

    let bytes: [UInt8]
    var position = 0
    private var depth = 0
    /// Whether the innermost container has just been opened, so that no comma may come.
    private var isAtStart = false
    private var names = JSONMemberNames()

    /// A reader at the start of `bytes`.
    package init(_ bytes: [UInt8]) {
        self.bytes = bytes
    }

    /// What the next value is, by its first byte. Reads nothing but whitespace.
    ///
    /// - Throws: `malformedJSON` where no value can begin.
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

    /// Enters an object.
    ///
    /// - Throws: `typeMismatch` where the value is something else, `malformedJSON` beyond 32 levels.
    package mutating func beginObject() throws(JOSEError) {
        try open(.object)
        names.beginObject()
    }

    /// Goes to the next member's value and takes note of its name. False at the end of the object, which is left.
    ///
    /// - Throws: `malformedJSON`, also for a name that the object already has.
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

    /// Whether the member that `nextMember()` came to has this name. To be asked before its value is entered.
    package func nameIs(_ name: StaticString) -> Bool {
        names.lastEquals(name, in: bytes)
    }

    /// The name of the member that `nextMember()` came to. To be asked before its value is entered.
    package func memberName() -> String {
        names.last(in: bytes)
    }

    /// Enters an array.
    ///
    /// - Throws: `typeMismatch` where the value is something else, `malformedJSON` beyond 32 levels.
    package mutating func beginArray() throws(JOSEError) {
        try open(.array)
    }

    /// Goes to the next element. False at the end of the array, which is left.
    ///
    /// - Throws: `malformedJSON`.
    package mutating func nextElement() throws(JOSEError) -> Bool {
        try advance(to: UInt8(ascii: "]"))
    }

    /// Checks that the value was the whole text but for whitespace.
    ///
    /// - Throws: `malformedJSON` where something follows or the value is not finished.
    package mutating func end() throws(JOSEError) {
        skipWhitespace()
        guard depth == 0, position == bytes.count else { throw malformed("something follows the JSON value") }
    }

    private mutating func open(_ container: JSONKind) throws(JOSEError) {
        let found = try kind()
        guard found == container else { throw mismatch(found, wanted: container) }
        guard depth < Self.maximumDepth else { throw malformed("JSON is nested deeper than 32 levels") }
        depth += 1
        position += 1
        isAtStart = true
    }

    /// Passes the comma before the next item of the innermost container, or leaves the container at `close`.
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

    @inline(__always)
    mutating func skipWhitespace() {
        while position < bytes.count {
            switch bytes[position] {
            case 0x20, 0x0A, 0x0D, 0x09: position += 1
            default: return
            }
        }
    }

    func malformed(_ message: String) -> JOSEError {
        JOSEError(code: .malformedJSON, message: message, offset: position)
    }

    func mismatch(_ found: JSONKind, wanted: JSONKind) -> JOSEError {
        JOSEError(
            code: .typeMismatch,
            message: "a JSON \(wanted.rawValue) is expected, not a \(found.rawValue)",
            offset: position
        )
    }
}
