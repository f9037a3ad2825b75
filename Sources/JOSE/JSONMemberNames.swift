/// The member names read so far in each open object, for finding a repeated name.
struct JSONMemberNames: ~Copyable {
    /// The decoded names of the open objects.
    private var text: [UInt8] = []
    /// The place of each name in `text`.
    private var names: [Range<Int>] = []
    /// The index of the first name of each open object.
    private var objects: [Int] = []

    mutating func beginObject() {
        if names.isEmpty { names.reserveCapacity(12) }
        objects.append(names.count)
    }

    mutating func endObject() {
        names.removeSubrange((objects.popLast() ?? 0)...)
        text.removeSubrange((names.last?.upperBound ?? 0)...)
    }

    /// Adds a name to the innermost object.
    ///
    /// - Throws: `malformedJSON` for a repeated name and for one member too many.
    mutating func append(_ token: JSONStringToken, of bytes: [UInt8]) throws(JOSEError) {
        let first = objects.last ?? 0
        guard names.count - first < JSONReader.maximumMembers else {
            let message = "a JSON object has more than \(JSONReader.maximumMembers) members"
            throw JOSEError(.malformedJSON, message, at: token.start)
        }
        let start = text.count
        token.appendContent(of: bytes, to: &text)
        let name = start..<text.count
        for index in first..<names.count where isEqual(names[index], name) {
            throw JOSEError(.malformedJSON, "a JSON object has a member twice", at: token.start)
        }
        names.append(name)
    }

    /// The last name of the innermost object.
    var last: ArraySlice<UInt8>? {
        names.count > objects.last ?? 0 ? names.last.map { text[$0] } : nil
    }

    func lastEquals(_ name: StaticString) -> Bool {
        guard names.count > objects.last ?? 0, let last = names.last else { return false }
        return name.equals(text.span, at: last.lowerBound, count: last.count)
    }

    private func isEqual(_ one: Range<Int>, _ other: Range<Int>) -> Bool {
        guard one.count == other.count else { return false }
        let text = text.span
        for index in 0..<one.count where text[one.lowerBound + index] != text[other.lowerBound + index] { return false }
        return true
    }
}
