/// Reads the part of YAML 1.2 that a configuration file of keys and values needs: block mappings and sequences, flow
/// collections (so JSON too), plain and quoted scalars, comments. Anchors, aliases, tags, block scalars and multi-line
/// plain scalars are refused by name, so nothing is ever read as something else than a full YAML reader would.
///
/// Not Yams: it links all of Foundation, which costs 8 MB of memory and 10 ms at every start of the tool, and
/// swift-configuration's snapshot of it can't list the keys of a file, so it can't find an unknown one.
struct YAMLReader {
    private let bytes: [UInt8]
    var index = 0
    var line = 1
    private static let maximumNesting = 16

    init(_ bytes: [UInt8]) throws(YAMLError) {
        guard String(validating: bytes, as: UTF8.self) != nil else {
            throw YAMLError(line: 1, cause: "the file is not UTF-8")
        }
        let hasMark = bytes.starts(with: [0xef, 0xbb, 0xbf])
        self.bytes = hasMark ? Array(bytes.dropFirst(3)) : bytes
    }

    /// The one document of the file, or nil if there is nothing but comments.
    mutating func document() throws(YAMLError) -> YAMLNode? {
        try skipToContent()
        if startsWithMarker("---") {
            index += 3
            try skipToContent()
        }
        guard peek != nil, !startsWithMarker("...") else { return nil }
        let node = try block(indentation: column, depth: 0)
        try skipToContent()
        if startsWithMarker("...") {
            index += 3
            try skipToContent()
        }
        guard peek == nil else {
            let cause = startsWithMarker("---") ? "a second document" : "unexpected indentation"
            throw YAMLError(line: line, cause: cause)
        }
        return node
    }

    private mutating func block(indentation: Int, depth: Int) throws(YAMLError) -> YAMLNode {
        guard depth < Self.maximumNesting else { throw YAMLError(line: line, cause: "nested too deeply") }
        if isSequenceItem { return try blockSequence(indentation: indentation, depth: depth) }
        if peek == UInt8(ascii: "{") || peek == UInt8(ascii: "[") {
            let node = try flow(depth: depth)
            try endOfLine()
            return node
        }
        return try blockMapping(indentation: indentation, depth: depth)
    }

    private mutating func blockMapping(indentation: Int, depth: Int) throws(YAMLError) -> YAMLNode {
        let start = line
        var members: [YAMLNode.Member] = []
        while peek != nil, column == indentation, !isSequenceItem, !isMarker {
            let keyLine = line
            let key = try scalar(stops: .blockKey)
            skipSpaces()
            guard peek == UInt8(ascii: ":"), key.content != .null else {
                throw YAMLError(line: keyLine, cause: "write settings as key: value")
            }
            index += 1
            guard isSpaceOrEnd(peek) else {
                throw YAMLError(line: keyLine, cause: "a space must follow the colon of key: value")
            }
            let value = try blockValue(indentation: indentation, keyLine: keyLine, depth: depth)
            members.append(.init(key: key.scalarText, value: value))
            try skipToContent()
        }
        guard peek == nil || column < indentation || (column == indentation && isMarker) else {
            throw YAMLError(line: line, cause: "unexpected indentation, or a value that goes on in a second line")
        }
        try refuseDuplicates(members)
        return YAMLNode(content: .mapping(members), line: start)
    }

    private mutating func blockValue(indentation: Int, keyLine: Int, depth: Int) throws(YAMLError) -> YAMLNode {
        skipSpaces()
        guard isEndOfLine else {
            let node = try inlineValue(depth: depth)
            try endOfLine()
            return node
        }
        try skipToContent()
        if peek != nil, !isMarker, column > indentation || (column == indentation && isSequenceItem) {
            return try block(indentation: column, depth: depth + 1)
        }
        return YAMLNode(content: .null, line: keyLine)
    }

    private mutating func blockSequence(indentation: Int, depth: Int) throws(YAMLError) -> YAMLNode {
        let start = line
        var nodes: [YAMLNode] = []
        while peek != nil, column == indentation, isSequenceItem {
            index += 1
            skipSpaces()
            if isEndOfLine {
                throw YAMLError(line: line, cause: "an item of a list must stand on the line of its hyphen")
            }
            nodes.append(try inlineValue(depth: depth))
            try endOfLine()
            try skipToContent()
        }
        return YAMLNode(content: .sequence(nodes), line: start)
    }

    private mutating func inlineValue(depth: Int) throws(YAMLError) -> YAMLNode {
        if peek == UInt8(ascii: "{") || peek == UInt8(ascii: "[") { return try flow(depth: depth + 1) }
        return try scalar(stops: .lineEnd)
    }
}

// MARK: - Where the reader stands

extension YAMLReader {
    var peek: UInt8? { index < bytes.count ? bytes[index] : nil }

    func peek(ahead distance: Int) -> UInt8? {
        index + distance < bytes.count ? bytes[index + distance] : nil
    }

    func isSpaceOrEnd(_ byte: UInt8?) -> Bool {
        switch byte {
        case nil, UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\n"), UInt8(ascii: "\r"): true
        default: false
        }
    }

    /// Bytes since the start of the line.
    private var column: Int {
        var start = index
        while start > 0, bytes[start - 1] != UInt8(ascii: "\n") { start -= 1 }
        return index - start
    }

    private var isSequenceItem: Bool { peek == UInt8(ascii: "-") && isSpaceOrEnd(peek(ahead: 1)) }

    private var isMarker: Bool { startsWithMarker("---") || startsWithMarker("...") }

    private func startsWithMarker(_ marker: StaticString) -> Bool {
        guard column == 0 else { return false }
        let wanted = Array(marker.description.utf8)
        return bytes[index...].starts(with: wanted) && isSpaceOrEnd(peek(ahead: wanted.count))
    }

    /// At the end of the line, or at the comment that ends it.
    private var isEndOfLine: Bool {
        switch peek {
        case nil, UInt8(ascii: "\n"), UInt8(ascii: "\r"): true
        case UInt8(ascii: "#"): index == 0 || isSpaceOrEnd(bytes[index - 1])
        default: false
        }
    }

    mutating func skipSpaces() {
        while peek == UInt8(ascii: " ") || peek == UInt8(ascii: "\t") { index += 1 }
    }

    mutating func newline() {
        index += 1
        line += 1
    }

    /// Skips blanks, comments and line ends; stops at content.
    mutating func skipToContent(inFlow: Bool = false) throws(YAMLError) {
        while let byte = peek {
            switch byte {
            case UInt8(ascii: "\n"): newline()
            case UInt8(ascii: " "), UInt8(ascii: "\r"): index += 1
            case UInt8(ascii: "\t"):
                skipSpaces()
                guard inFlow || isEndOfLine else {
                    throw YAMLError(line: line, cause: "indent with spaces, not with tabs")
                }
            case UInt8(ascii: "#") where isEndOfLine:
                while peek != nil, peek != UInt8(ascii: "\n") { index += 1 }
            default: return
            }
        }
    }

    private mutating func endOfLine() throws(YAMLError) {
        skipSpaces()
        guard isEndOfLine else { throw YAMLError(line: line, cause: "unexpected text after the value") }
    }

    func refuseDuplicates(_ members: [YAMLNode.Member]) throws(YAMLError) {
        var seen: Set<String> = []
        for member in members where !seen.insert(member.key).inserted {
            throw YAMLError(line: member.value.line, cause: "\(Unshown.shown(member.key)) is set twice")
        }
    }
}
