/// The member names met so far in each object that is open, to find the ones that come twice.
struct JSONNameStack: ~Copyable {
    private struct Name {
        /// The first eight bytes and the length: differs for nearly all names that differ.
        var fingerprint: UInt64 = 0
        var start = 0
        /// Negative marks where an object begins.
        var count = -1
        /// Whether the name lies in `unescaped` instead of the text.
        var isEscaped = false
    }

    private var names: [Name] = []
    private var unescaped: [UInt8] = []

    mutating func beginObject() {
        if names.isEmpty { names.reserveCapacity(12) }
        names.append(Name())
    }

    mutating func endObject() {
        let start = names.lastIndex { $0.count < 0 } ?? 0
        names.removeSubrange(start...)
    }

    /// Adds a name of the innermost object.
    ///
    /// - Throws: `malformedJSON` for a name that the object already has and for one too many.
    mutating func append(_ token: JSONStringToken, of bytes: [UInt8]) throws(JOSEError) {
        var name = Name(start: token.start, count: token.end - token.start, isEscaped: token.isEscaped)
        if token.isEscaped {
            let content = token.content(of: bytes)
            name.start = unescaped.count
            name.count = content.count
            unescaped.append(contentsOf: content)
            name.fingerprint = Self.fingerprint(of: name, in: unescaped.span)
        } else {
            name.fingerprint = Self.fingerprint(of: name, in: bytes.span)
        }
        var index = names.count
        while index > 0, names[index - 1].count >= 0 {
            index -= 1
            guard names[index].fingerprint != name.fingerprint || !areEqual(names[index], name, in: bytes) else {
                throw JOSEError(code: .malformedJSON, message: "a JSON object has a member twice", offset: token.start)
            }
        }
        guard names.count - index < JSONReader.maximumMembers else {
            throw JOSEError(
                code: .malformedJSON,
                message: "a JSON object has more than 256 members",
                offset: token.start
            )
        }
        names.append(name)
    }

    func lastEquals(_ text: StaticString, in bytes: [UInt8]) -> Bool {
        guard let name = names.last, name.count >= 0 else { return false }
        return name.isEscaped
            ? text.equals(unescaped.span, at: name.start, count: name.count)
            : text.equals(bytes.span, at: name.start, count: name.count)
    }

    func last(in bytes: [UInt8]) -> String {
        guard let name = names.last, name.count >= 0 else { return "" }
        return String(decoding: content(of: name, in: bytes), as: UTF8.self)
    }

    private func content(of name: Name, in bytes: [UInt8]) -> ArraySlice<UInt8> {
        (name.isEscaped ? unescaped : bytes)[name.start..<name.start + name.count]
    }

    private func areEqual(_ one: Name, _ other: Name, in bytes: [UInt8]) -> Bool {
        one.count == other.count && content(of: one, in: bytes) == content(of: other, in: bytes)
    }

    private static func fingerprint(of name: Name, in bytes: Span<UInt8>) -> UInt64 {
        let salt = UInt64(truncatingIfNeeded: name.count) &* 0x9E37_79B9_7F4A_7C15
        if name.start <= bytes.count - 8 {
            // The shift drops what follows a shorter name; by 64, for an empty one, it leaves zero.
            return salt ^ bytes.word(at: name.start) << UInt64(8 * (8 - min(name.count, 8)))
        }
        // The same value without reading beyond the end.
        var word: UInt64 = 0
        for index in 0..<min(name.count, 8) { word |= UInt64(bytes[name.start + index]) << UInt64(8 * index) }
        return salt ^ word << UInt64(8 * (8 - min(name.count, 8)))
    }
}
