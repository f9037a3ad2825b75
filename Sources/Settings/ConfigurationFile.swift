import JOSE

/// The settings of a configuration file, before their values are parsed: flat YAML, or one flat JSON object.
///
/// In YAML, a setting is a line `key: value`; a list is `key:` followed by lines `- item`. Everything else of YAML is an
/// error, so that no file means something else here than to a full YAML parser. Yams would parse all of YAML, but needs
/// Foundation, which costs 8 MB of memory and 10 ms at each start of the program.
struct ConfigurationFile {
    struct Item: Sendable, Equatable {
        /// Items of a list are joined with commas. Empty for a key without a value.
        var text: String
        var isList = false
        var line: Int
    }

    /// Settings by key, in which hyphens and dots count as `_`.
    private(set) var items: [String: Item] = [:]
    /// In YAML, the key that list items may follow, and how far its first item is indented.
    private var list: (key: String, indentation: Int?)?

    /// - Throws: An error that names line and column, but not the path.
    init(parsing bytes: [UInt8]) throws(ConfigurationFileError) {
        let hasByteOrderMark = bytes.starts(with: [0xef, 0xbb, 0xbf])
        let content = hasByteOrderMark ? Array(bytes.dropFirst(3)) : bytes
        guard let text = String(validating: content, as: UTF8.self) else {
            throw ConfigurationFileError(line: 1, column: 1, cause: "the file is not UTF-8")
        }
        if text.first(where: { !$0.isWhitespace }) == "{" {
            try read(json: content)
        } else {
            let lines = text.split(omittingEmptySubsequences: false) { ["\n", "\r\n", "\r"].contains($0) }
            for (index, line) in lines.enumerated() { try read(YAMLLine(number: index + 1, text: line)) }
        }
    }

    private mutating func add(_ name: some StringProtocol, _ item: Item) throws(ConfigurationFileError) -> String {
        let key = String(name.map { $0 == "-" || $0 == "." ? "_" : $0 })
        guard items.updateValue(item, forKey: key) == nil else {
            let cause = "\(Redaction.redacted(key)) is set twice: keep one of the two"
            throw ConfigurationFileError(line: item.line, column: 1, cause: cause)
        }
        return key
    }
}

package struct ConfigurationFileError: Error, Sendable, Equatable {
    package let line: Int
    package let column: Int
    package let cause: String

    package init(line: Int, column: Int, cause: String) {
        self.line = line
        self.column = column
        self.cause = cause
    }
}

// MARK: - YAML

extension ConfigurationFile {
    private mutating func read(_ line: YAMLLine) throws(ConfigurationFileError) {
        if YAMLLine.isBlank(line.text) { return }
        let content = line.text.drop { $0 == " " }
        if ["---", "..."].contains(line.text), items.isEmpty { return }
        if content.first == "-", YAMLLine.isSpace(content.dropFirst().first) {
            return try readItem(content.dropFirst(), of: line)
        }
        guard let colon = YAMLLine.colon(in: line.text), colon > line.text.startIndex,
            !line.text[..<colon].contains(where: YAMLLine.isSpace)
        else {
            let cause =
                YAMLLine.isSpace(line.text.first)
                ? "settings are not nested: write the whole key, such as keys_url, at the start of a line, and its value on "
                    + "that line" : "write settings as key: value"
            throw line.error(at: content.startIndex, cause)
        }
        let text = try line.scalar(line.text[colon...].dropFirst())
        let key = try add(line.text[..<colon], Item(text: text ?? "", line: line.number))
        list = text == nil ? (key, nil) : nil
    }

    private mutating func readItem(_ content: Substring, of line: YAMLLine) throws(ConfigurationFileError) {
        let indentation = line.text.prefix { $0 == " " }.count
        guard let list, list.indentation ?? indentation == indentation else {
            throw line.error(at: content.startIndex, "write list items below their key, all with the same indentation")
        }
        guard let text = try line.scalar(content) else {
            throw line.error(at: content.startIndex, "write the item on the line of its hyphen")
        }
        items[list.key]?.text += list.indentation == nil ? text : "," + text
        items[list.key]?.isList = true
        self.list?.indentation = indentation
    }
}

struct YAMLLine {
    let number: Int
    let text: Substring

    func error(at index: Substring.Index, _ cause: String) -> ConfigurationFileError {
        let column = text.distance(from: text.startIndex, to: index) + 1
        return ConfigurationFileError(line: number, column: column, cause: cause)
    }

    /// The value at the end of the line; nil for none and for null.
    func scalar(_ rest: Substring) throws(ConfigurationFileError) -> String? {
        if Self.isBlank(rest) { return nil }
        let start = rest.drop(while: Self.isSpace)
        switch start.first {
        case "\"", "'":
            return try quoted(start)
        case "|", ">":
            throw error(at: start.startIndex, "| and > are not supported: write the value on one line")
        case "[", "{":
            let cause =
                "[…] and {…} are not supported in YAML: write each item of a list on its own line, after a hyphen"
            throw error(at: start.startIndex, cause)
        case let first?
        where "&*!@`%,]}".contains(first) || "-?:".contains(first) && Self.isSpace(start.dropFirst().first):
            throw error(at: start.startIndex, "put the value in quotes: its first character has a meaning in YAML")
        default:
            break
        }
        let comment = start.indices.dropFirst().first {
            start[$0] == "#" && Self.isSpace(start[start.index(before: $0)])
        }
        var value = start[..<(comment ?? start.endIndex)]
        while let last = value.last, Self.isSpace(last) { value.removeLast() }
        if let colon = Self.colon(in: value) {
            throw error(at: colon, "put a value with a colon and a space in quotes")
        }
        return ["~", "null", "Null", "NULL"].contains(value) ? nil : String(value)
    }

    /// A value in quotes; in double quotes, it has the escapes of JSON.
    private func quoted(_ start: Substring) throws(ConfigurationFileError) -> String {
        var rest = start
        let text = try quotation(&rest)
        guard Self.isBlank(rest), Self.isSpace(rest.first) else {
            throw error(at: rest.startIndex, "unexpected text after the value")
        }
        return text
    }

    /// Removes a value in quotes from the start of `rest`.
    func quotation(_ rest: inout Substring) throws(ConfigurationFileError) -> String {
        let start = rest
        // Neither expression backtracks further than one character.
        let match = start.prefixMatch(of: /'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"/)
        guard let text = match?.output else { throw error(at: start.startIndex, "the closing quote is missing") }
        rest = start[text.endIndex...]
        if text.first == "'" { return String(text.dropFirst().dropLast().replacing("''", with: "'")) }
        do throws(JOSEError) {
            return try JSONValue(parsing: Array(text.utf8)).string ?? ""
        } catch {
            throw self.error(at: start.startIndex, "in double quotes, write escapes as in JSON: \(error.message)")
        }
    }

    static func colon(in text: Substring) -> Substring.Index? {
        text.indices.first { text[$0] == ":" && isSpace(text[$0...].dropFirst().first) }
    }

    static func isSpace(_ character: Character?) -> Bool {
        character == nil || character == " " || character == "\t"
    }

    static func isBlank(_ text: Substring) -> Bool {
        let content = text.drop(while: isSpace)
        return content.isEmpty || content.first == "#"
    }
}

// MARK: - JSON

extension ConfigurationFile {
    private mutating func read(json bytes: [UInt8]) throws(ConfigurationFileError) {
        let value: JSONValue
        do throws(JOSEError) {
            value = try JSONValue(parsing: bytes)
        } catch {
            let lines = bytes.prefix(error.offset ?? 0).split(separator: 10, omittingEmptySubsequences: false)
            let (line, column) = (lines.count, (lines.last?.count ?? 0) + 1)
            throw ConfigurationFileError(line: line, column: column, cause: "this is not JSON: \(error.message)")
        }
        for (member, line) in zip(value.members ?? [], Self.memberLines(bytes)) {
            let elements = member.value.array ?? (member.value == .null ? [] : [member.value])
            let texts = try elements.map { element throws(ConfigurationFileError) in
                switch element {
                case .string(let text): return text
                case .number, .boolean: return element.compactText
                case .null, .array, .object:
                    let cause = "write a setting as one value or a list of values, under its whole name"
                    throw ConfigurationFileError(line: line, column: 1, cause: cause)
                }
            }
            let isList = member.value.kind == .array
            _ = try add(member.name, Item(text: texts.joined(separator: ","), isList: isList, line: line))
        }
    }

    /// The line of each member, by its colon: in a flat object, a colon outside strings belongs to a member.
    private static func memberLines(_ bytes: [UInt8]) -> [Int] {
        var (lines, line, isQuoted, isEscaped) = ([Int](), 1, false, false)
        for byte in bytes {
            switch byte {
            case UInt8(ascii: "\n"): line += 1
            case _ where isEscaped: isEscaped = false
            case UInt8(ascii: "\\"): isEscaped = isQuoted
            case UInt8(ascii: "\""): isQuoted.toggle()
            case UInt8(ascii: ":") where !isQuoted: lines.append(line)
            default: break
            }
        }
        return lines
    }
}
