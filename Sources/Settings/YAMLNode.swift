/// A value of a file with nested mappings and lists, in block style, flow style or JSON.
///
/// Scalars are on one line and have no type. Anchors, tags, multi-line texts and everything else of YAML are errors, so that
/// no file means something else here than to a full YAML parser.
package struct YAMLNode: Sendable, Equatable {
    package indirect enum Value: Sendable, Equatable {
        case null
        case scalar(String)
        case list([YAMLNode])
        case mapping([Member])
    }

    package struct Member: Sendable, Equatable {
        package let key: String
        package let line: Int
        package let node: YAMLNode
    }

    package let value: Value
    package let line: Int

    init(_ value: Value, line: Int) {
        self.value = value
        self.line = line
    }

    /// - Throws: An error that names line and column, but not the path.
    package init(parsing bytes: [UInt8]) throws(ConfigurationFileError) {
        let hasByteOrderMark = bytes.starts(with: [0xef, 0xbb, 0xbf])
        guard let text = String(validating: bytes.dropFirst(hasByteOrderMark ? 3 : 0), as: UTF8.self) else {
            throw ConfigurationFileError(line: 1, column: 1, cause: "the file is not UTF-8")
        }
        var parser = YAMLParser(text)
        self = try parser.document()
    }
}

private struct YAMLParser {
    /// Deeper nesting than any file of siwad has; each level uses the stack.
    private static let deepest = 16

    private let lines: [YAMLLine]
    private var row = 0
    /// The rest of the line `row` that is not parsed.
    private var rest: Substring

    init(_ text: String) {
        lines = text.split(omittingEmptySubsequences: false) { $0.isNewline }.enumerated().map { index, line in
            YAMLLine(number: index + 1, text: line)
        }
        rest = lines[0].text
    }

    mutating func document() throws(ConfigurationFileError) -> YAMLNode {
        if nextLine(), lines[row].text == "---" { advance() }
        guard nextLine() else { return YAMLNode(.null, line: 1) }
        let isFlow = rest.first == "{" || rest.first == "["
        let node = isFlow ? try inline(depth: 0) : try block(indentation: 0, depth: 0)
        guard !nextLine() else { throw error("write keys at the start of their lines, all with the same indentation") }
        return node
    }

    // MARK: - Lines

    private var line: YAMLLine { lines[min(row, lines.count - 1)] }
    private var indentation: Int { line.text.prefix { $0 == " " }.count }
    private var content: Substring { line.text.drop { $0 == " " } }
    private var isItem: Bool { content.first == "-" && YAMLLine.isSpace(content.dropFirst().first) }

    private func error(_ cause: String) -> ConfigurationFileError { line.error(at: rest.startIndex, cause) }

    private mutating func advance() {
        row += 1
        rest = line.text
    }

    /// Goes to the next line with content, from the present one on; false at the end.
    private mutating func nextLine() -> Bool {
        while row < lines.count, YAMLLine.isBlank(lines[row].text) { advance() }
        guard row < lines.count else { return false }
        rest = content
        return true
    }

    // MARK: - Block style

    private mutating func block(indentation: Int, depth: Int) throws(ConfigurationFileError) -> YAMLNode {
        guard self.indentation == indentation, depth < Self.deepest else {
            throw error("write keys at the start of their lines, all with the same indentation")
        }
        return isItem ? try items(indentation) : try mapping(indentation, depth)
    }

    private mutating func mapping(_ indentation: Int, _ depth: Int) throws(ConfigurationFileError) -> YAMLNode {
        let first = line.number
        var members: [YAMLNode.Member] = []
        while nextLine(), self.indentation == indentation, !isItem {
            let number = line.number
            let key = try key(endingFlow: false)
            try add(key, number, to: &members) { parser throws(ConfigurationFileError) in
                if !YAMLLine.isBlank(parser.rest) { return try parser.inline(depth: depth + 1) }
                parser.advance()
                guard parser.nextLine() else { return YAMLNode(.null, line: number) }
                let next = parser.indentation
                if next > indentation { return try parser.block(indentation: next, depth: depth + 1) }
                return next == indentation && parser.isItem
                    ? try parser.items(indentation) : YAMLNode(.null, line: number)
            }
        }
        guard row >= lines.count || self.indentation < indentation || isItem && self.indentation == indentation else {
            throw error("this line is indented further than the keys before it")
        }
        return YAMLNode(.mapping(members), line: first)
    }

    private mutating func items(_ indentation: Int) throws(ConfigurationFileError) -> YAMLNode {
        let first = line.number
        var items: [YAMLNode] = []
        while nextLine(), self.indentation == indentation, isItem {
            rest = content.dropFirst()
            guard !YAMLLine.isBlank(rest) else { throw error("write the item on the line of its hyphen") }
            items.append(try inline(depth: Self.deepest - 1))
        }
        return YAMLNode(.list(items), line: first)
    }

    /// The value on the rest of the line. A value in flow style may end on a later one.
    private mutating func inline(depth: Int) throws(ConfigurationFileError) -> YAMLNode {
        rest = rest.drop(while: YAMLLine.isSpace)
        let number = line.number
        guard rest.first == "{" || rest.first == "[" else {
            let text = try line.scalar(rest)
            advance()
            return YAMLNode(text.map { .scalar($0) } ?? .null, line: number)
        }
        let node = try flow(depth: depth)
        guard YAMLLine.isBlank(rest), YAMLLine.isSpace(rest.first) else {
            throw error("unexpected text after the value")
        }
        advance()
        return node
    }

    // MARK: - Both styles

    private mutating func add(
        _ key: String,
        _ number: Int,
        to members: inout [YAMLNode.Member],
        _ value: (inout YAMLParser) throws(ConfigurationFileError) -> YAMLNode
    ) throws(ConfigurationFileError) {
        guard !members.contains(where: { $0.key == key }) else {
            let cause = "\(Redaction.redacted(key)) is set twice: keep one of the two"
            throw ConfigurationFileError(line: number, column: 1, cause: cause)
        }
        members.append(YAMLNode.Member(key: key, line: number, node: try value(&self)))
    }

    /// A key and its colon.
    private mutating func key(endingFlow isFlow: Bool) throws(ConfigurationFileError) -> String {
        let key: String
        let isQuoted = rest.first == "\"" || rest.first == "'"
        if isQuoted {
            key = try line.quotation(&rest)
        } else {
            let word = rest.prefix { $0.isASCII && ($0.isLetter || $0.isNumber || "_-.".contains($0)) }
            (key, rest) = (String(word), rest[word.endIndex...])
        }
        let after = rest.dropFirst().first
        guard rest.first == ":", !key.isEmpty,
            YAMLLine.isSpace(after) || isFlow && (isQuoted || ",]}".contains(after ?? " "))
        else { throw error("write key: value") }
        rest.removeFirst()
        return key
    }

    // MARK: - Flow style

    private mutating func flow(depth: Int) throws(ConfigurationFileError) -> YAMLNode {
        let number = line.number
        guard depth < Self.deepest else { throw error("this is nested too deeply") }
        switch rest.first {
        case "{":
            var members: [YAMLNode.Member] = []
            try elements(until: "}") { parser throws(ConfigurationFileError) in
                let number = parser.line.number
                let key = try parser.key(endingFlow: true)
                try parser.add(key, number, to: &members) { parser throws(ConfigurationFileError) in
                    try parser.skipSpace()
                    let isMissing = parser.rest.first == "," || parser.rest.first == "}"
                    return isMissing ? YAMLNode(.null, line: number) : try parser.flow(depth: depth + 1)
                }
            }
            return YAMLNode(.mapping(members), line: number)
        case "[":
            var items: [YAMLNode] = []
            try elements(until: "]") { parser throws(ConfigurationFileError) in
                items.append(try parser.flow(depth: depth + 1))
            }
            return YAMLNode(.list(items), line: number)
        case "\"", "'":
            return YAMLNode(.scalar(try line.quotation(&rest)), line: number)
        default:
            // The first character, comments and null have the same rules as in a value on a line.
            let end = rest.indices.first { index in
                ",[]{}".contains(rest[index]) || rest[index...].hasPrefix(" #")
                    || rest[index] == ":" && ",[]{}".contains(rest[index...].dropFirst().first ?? ",")
            }
            let text = rest[..<(end ?? rest.endIndex)]
            guard !YAMLLine.isBlank(text) else { throw error("write a value here") }
            let scalar = try line.scalar(text)
            rest = rest[text.endIndex...]
            return YAMLNode(scalar.map { .scalar($0) } ?? .null, line: number)
        }
    }

    /// The elements after an opening bracket, and the closing one.
    private mutating func elements(
        until end: Character,
        _ element: (inout YAMLParser) throws(ConfigurationFileError) -> Void
    ) throws(ConfigurationFileError) {
        rest.removeFirst()
        try skipSpace()
        while rest.first != end {
            try element(&self)
            try skipSpace()
            guard rest.first == "," || rest.first == end else { throw error("write a comma or \(end) here") }
            guard rest.first == "," else { break }
            rest.removeFirst()
            try skipSpace()
        }
        rest.removeFirst()
    }

    /// Goes to the next character of a value in flow style, over lines and comments.
    private mutating func skipSpace() throws(ConfigurationFileError) {
        let isAtStart = rest.startIndex == line.text.startIndex
        let space = rest.prefix(while: YAMLLine.isSpace)
        let after = rest[space.endIndex...]
        guard after.isEmpty || after.first == "#" && (isAtStart || !space.isEmpty) else {
            rest = after
            return
        }
        advance()
        guard row < lines.count else { throw error("a closing bracket is missing") }
        try skipSpace()
    }
}
