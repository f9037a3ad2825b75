extension JSONReader {
    /// Reads a string.
    ///
    /// - Throws: `typeMismatch`, `malformedJSON`.
    package mutating func string() throws(JOSEError) -> String {
        try expect(.string)
        let token = try scanString()
        return token.text(of: bytes)
    }

    /// Reads a string as the UTF-8 bytes it stands for: for JSON within JSON, and for a token.
    ///
    /// - Throws: `typeMismatch`, `malformedJSON`.
    package mutating func utf8() throws(JOSEError) -> [UInt8] {
        try expect(.string)
        let token = try scanString()
        return token.content(of: bytes)
    }

    /// Reads a number that is exactly a 64-bit integer, in whatever spelling: `1.5e3` is 1500.
    ///
    /// - Throws: `typeMismatch`, `malformedJSON`, `notAnInteger`.
    package mutating func integer() throws(JOSEError) -> Int64 {
        try expect(.number)
        let start = position
        let token = try scanNumber()
        guard let value = token.integer(of: bytes.span) else {
            throw JOSEError(code: .notAnInteger, message: "a JSON number is not a 64-bit integer", offset: start)
        }
        return value
    }

    /// Reads `true` or `false`.
    ///
    /// - Throws: `typeMismatch`, `malformedJSON`.
    package mutating func boolean() throws(JOSEError) -> Bool {
        try expect(.boolean)
        if bytes[position] == UInt8(ascii: "t") {
            try scanWord("true")
            return true
        }
        try scanWord("false")
        return false
    }

    /// Reads a string, or skips a value of another type and returns nil.
    ///
    /// - Throws: `malformedJSON`.
    package mutating func stringOrSkip() throws(JOSEError) -> String? {
        guard try kind() == .string else {
            try skipValue()
            return nil
        }
        return try string()
    }

    /// Reads a number that is exactly a 64-bit integer, or skips any other value and returns nil.
    ///
    /// - Throws: `malformedJSON`.
    package mutating func integerOrSkip() throws(JOSEError) -> Int64? {
        guard try kind() == .number else {
            try skipValue()
            return nil
        }
        let token = try scanNumber()
        return token.integer(of: bytes.span)
    }

    /// Passes over a value of any type, which is checked as strictly as if it were read.
    ///
    /// - Throws: `malformedJSON`.
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

    private mutating func expect(_ wanted: JSONKind) throws(JOSEError) {
        let found = try kind()
        guard found == wanted else { throw mismatch(found, wanted: wanted) }
    }

    mutating func scanString() throws(JOSEError) -> JSONStringToken {
        let token = try JSONStringToken(scanning: bytes.span, from: position)
        position = token.end + 1
        return token
    }

    mutating func scanNumber() throws(JOSEError) -> JSONNumberToken {
        let token = try JSONNumberToken(scanning: bytes.span, from: position)
        position = token.end
        return token
    }

    mutating func scanWord(_ word: StaticString) throws(JOSEError) {
        guard word.equals(bytes.span, at: position, count: word.utf8CodeUnitCount) else {
            throw malformed("a JSON value is expected")
        }
        position += word.utf8CodeUnitCount
    }
}
