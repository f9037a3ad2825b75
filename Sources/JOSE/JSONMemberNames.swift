/// The member names read so far in each open object, for finding a repeated name.
struct JSONMemberNames: ~Copyable {
    private struct Name {
        let start: Int
        let count: Int
        /// True if `start` is an index in `unescaped` and not in the text.
        let isEscaped: Bool
    }

    private var names: [Name] = []
    /// The index of the first name of each open object.
    private var objects: [Int] = []
    private var unescaped: [UInt8] = []

    mutating func beginObject() {
        if names.isEmpty { names.reserveCapacity(12) }
        objects.append(names.count)
    }

    mutating func endObject() {
        names.removeSubrange((objects.popLast() ?? 0)...)
    }

    /// Adds a name to the innermost object.
    ///
    /// - Throws: `malformedJSON` for a repeated name and for one member too many.
    mutating func append(_ token: JSONStringToken, of bytes: [UInt8]) throws(JOSEError) {
        let first = objects.last ?? 0
        guard names.count - first < JSONReader.maximumMembers else {
            throw JOSEError(
                code: .malformedJSON,
                message: "a JSON object has more than \(JSONReader.maximumMembers) members",
                offset: token.start
            )
        }
        let name: Name
        if token.isEscaped {
            let content = token.content(of: bytes)
            name = Name(start: unescaped.count, count: content.count, isEscaped: true)
            unescaped.append(contentsOf: content)
        } else {
            name = Name(start: token.start, count: token.end - token.start, isEscaped: false)
        }
        for index in first..<names.count where isEqual(names[index], name, in: bytes) {
            throw JOSEError(code: .malformedJSON, message: "a JSON object has a member twice", offset: token.start)
        }
        names.append(name)
    }

    func lastEquals(_ text: StaticString, in bytes: [UInt8]) -> Bool {
        guard let name = last else { return false }
        return text.equals((name.isEscaped ? unescaped : bytes).span, at: name.start, count: name.count)
    }

    func last(in bytes: [UInt8]) -> String {
        guard let name = last else { return "" }
        let content = (name.isEscaped ? unescaped : bytes)[name.start..<name.start + name.count]
        return String(decoding: content, as: UTF8.self)
    }

    /// The last name of the innermost object.
    private var last: Name? {
        names.count > objects.last ?? 0 ? names.last : nil
    }

    private func isEqual(_ one: Name, _ other: Name, in bytes: [UInt8]) -> Bool {
        guard one.count == other.count else { return false }
        let here = one.isEscaped ? unescaped.span : bytes.span
        let there = other.isEscaped ? unescaped.span : bytes.span
        for index in 0..<one.count where here[one.start + index] != there[other.start + index] { return false }
        return true
    }
}
