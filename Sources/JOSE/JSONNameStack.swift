/// The member names met so far in each object that is open, to find the ones that come twice.
///
/// A name of an object of ordinary size is compared with those before it as it comes. The names of a larger one are sorted
/// when it ends: a body holds enough objects of the most members, anonymously sent, for every pair to matter.
struct JSONNameStack: ~Copyable {
    private struct Name {
        /// The first eight bytes and the length: differs for nearly all names that differ.
        var fingerprint: UInt64 = 0
        /// Where it begins in the text. Of what marks the beginning of an object: where the names of the object around
        /// it begin.
        var offset: Int
        /// Negative marks where an object begins.
        var count = -1
        /// Where it lies in `unescaped`; negative: in the text as it is.
        var unescapedStart = -1

        var isEscaped: Bool { unescapedStart >= 0 }
        var start: Int { isEscaped ? unescapedStart : offset }
    }

    /// The most names that are compared each with each.
    private static let maximumCompared = 16

    private var names: [Name] = []
    /// Where the names of the innermost object begin.
    private var first = 0
    private var unescaped: [UInt8] = []

    mutating func beginObject() {
        if names.isEmpty { names.reserveCapacity(12) }
        names.append(Name(offset: first))
        first = names.count
    }

    /// Leaves the innermost object.
    ///
    /// - Throws: `malformedJSON` when two of its names are equal.
    mutating func endObject(of bytes: [UInt8]) throws(JOSEError) {
        if names.count - first > Self.maximumCompared, let offset = firstRepeated(in: bytes) {
            throw Self.repeated(at: offset)
        }
        guard first > 0 else {
            // A reader used out of turn: no object was begun.
            names.removeAll(keepingCapacity: true)
            return
        }
        let outer = names[first - 1].offset
        names.removeSubrange((first - 1)...)
        first = outer
    }

    /// Adds a name of the innermost object.
    ///
    /// - Throws: `malformedJSON` for one too many, and for a name that the object already has unless that comes out when
    ///   the object ends.
    mutating func append(_ token: JSONStringToken, of bytes: [UInt8]) throws(JOSEError) {
        var name = Name(offset: token.start, count: token.end - token.start)
        if token.isEscaped {
            let content = token.content(of: bytes)
            name.unescapedStart = unescaped.count
            name.count = content.count
            unescaped.append(contentsOf: content)
            name.fingerprint = Self.fingerprint(of: name, in: unescaped.span)
        } else {
            name.fingerprint = Self.fingerprint(of: name, in: bytes.span)
        }
        let count = names.count - first
        if count < Self.maximumCompared {
            for index in first..<names.count where names[index].fingerprint == name.fingerprint {
                guard order(names[index], name, in: bytes) != 0 else { throw Self.repeated(at: token.start) }
            }
        }
        guard count < JSONReader.maximumMembers else {
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
        let content = (name.isEscaped ? unescaped : bytes)[name.start..<name.start + name.count]
        return String(decoding: content, as: UTF8.self)
    }

    // MARK: - Comparing names

    /// Where the first name of the innermost object stands that the object has already.
    private func firstRepeated(in bytes: [UInt8]) -> Int? {
        var sorted = Array(names[first...])
        sorted.sort { one, other in
            if one.fingerprint != other.fingerprint { return one.fingerprint < other.fingerprint }
            let order = order(one, other, in: bytes)
            return order == 0 ? one.offset < other.offset : order < 0
        }
        var offset: Int?
        for index in 1..<sorted.count where sorted[index].fingerprint == sorted[index - 1].fingerprint {
            guard order(sorted[index - 1], sorted[index], in: bytes) == 0 else { continue }
            offset = min(offset ?? .max, sorted[index].offset)
        }
        return offset
    }

    /// An order of names of the same fingerprint: 0 for equal ones.
    private func order(_ one: Name, _ other: Name, in bytes: [UInt8]) -> Int {
        if one.count != other.count { return one.count < other.count ? -1 : 1 }
        // The fingerprint of two names of one length has all of their first eight bytes.
        if one.count <= 8 { return 0 }
        let here = one.isEscaped ? unescaped.span : bytes.span
        let there = other.isEscaped ? unescaped.span : bytes.span
        var index = 8
        while index < one.count {
            // The last eight bytes once more in part, so that nothing is read beyond the end.
            let place = min(index, one.count - 8)
            let (left, right) = (here.word(at: one.start + place), there.word(at: other.start + place))
            if left != right { return left < right ? -1 : 1 }
            index += 8
        }
        return 0
    }

    private static func repeated(at offset: Int) -> JOSEError {
        JOSEError(code: .malformedJSON, message: "a JSON object has a member twice", offset: offset)
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
