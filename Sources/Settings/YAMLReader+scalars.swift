extension YAMLReader {
    /// What ends a plain scalar.
    enum ScalarEnd {
        case blockKey
        case lineEnd
        case flow
    }

    /// A plain or quoted scalar on one line; a plain `null`, `~` or nothing is null.
    mutating func scalar(stops end: ScalarEnd) throws(YAMLError) -> YAMLNode {
        let start = line
        switch peek {
        case UInt8(ascii: "\""):
            return YAMLNode(content: .scalar(try doubleQuoted()), line: start)
        case UInt8(ascii: "'"):
            return YAMLNode(content: .scalar(try singleQuoted()), line: start)
        case UInt8(ascii: "|"), UInt8(ascii: ">"):
            throw YAMLError(line: start, cause: "values over several lines (| and >) are not read")
        case UInt8(ascii: "&"), UInt8(ascii: "*"), UInt8(ascii: "!"):
            throw YAMLError(line: start, cause: "anchors, aliases and tags are not read; quote a value that starts so")
        case UInt8(ascii: "@"), UInt8(ascii: "`"), UInt8(ascii: "%"), UInt8(ascii: ","), UInt8(ascii: "]"),
            UInt8(ascii: "}"):
            throw YAMLError(line: start, cause: "quote a value that starts with such a character")
        case UInt8(ascii: "?") where isSpaceOrEnd(peek(ahead: 1)):
            throw YAMLError(line: start, cause: "complex keys are not read")
        case nil, .some:
            return try plain(stops: end)
        }
    }

    private mutating func plain(stops end: ScalarEnd) throws(YAMLError) -> YAMLNode {
        var text: [UInt8] = []
        scanning: while let byte = peek {
            switch byte {
            case UInt8(ascii: "\n"), UInt8(ascii: "\r"):
                break scanning
            case UInt8(ascii: "#") where text.isEmpty || isSpaceOrEnd(text.last):
                break scanning
            case UInt8(ascii: ":") where endsKey(end):
                if end == .lineEnd {
                    throw YAMLError(line: line, cause: "quote a value that holds a colon and a space")
                }
                break scanning
            case UInt8(ascii: ","), UInt8(ascii: "]"), UInt8(ascii: "}"), UInt8(ascii: "["), UInt8(ascii: "{"):
                if end == .flow { break scanning }
            default:
                break
            }
            text.append(byte)
            index += 1
        }
        while text.last == UInt8(ascii: " ") || text.last == UInt8(ascii: "\t") { text.removeLast() }
        let string = String(decoding: text, as: UTF8.self)
        let isNull = ["", "~", "null", "Null", "NULL"].contains(string)
        return YAMLNode(content: isNull ? .null : .scalar(string), line: line)
    }

    private func endsKey(_ end: ScalarEnd) -> Bool {
        let next = peek(ahead: 1)
        guard end == .flow else { return isSpaceOrEnd(next) }
        return isSpaceOrEnd(next) || [UInt8(ascii: ","), UInt8(ascii: "]"), UInt8(ascii: "}")].contains(next)
    }

    private mutating func singleQuoted() throws(YAMLError) -> String {
        var text: [UInt8] = []
        index += 1
        while let byte = peek, byte != UInt8(ascii: "\n") {
            index += 1
            if byte == UInt8(ascii: "'") {
                guard peek == UInt8(ascii: "'") else { return String(decoding: text, as: UTF8.self) }
                index += 1
            }
            text.append(byte)
        }
        throw YAMLError(line: line, cause: "the closing quote is missing on this line")
    }

    private mutating func doubleQuoted() throws(YAMLError) -> String {
        var text: [UInt8] = []
        index += 1
        while let byte = peek, byte != UInt8(ascii: "\n") {
            index += 1
            switch byte {
            case UInt8(ascii: "\""): return String(decoding: text, as: UTF8.self)
            case UInt8(ascii: "\\"): text.append(contentsOf: try escape())
            default: text.append(byte)
            }
        }
        throw YAMLError(line: line, cause: "the closing quote is missing on this line")
    }

    private mutating func escape() throws(YAMLError) -> [UInt8] {
        guard let byte = peek else { throw YAMLError(line: line, cause: "the file ends inside a quoted value") }
        index += 1
        switch byte {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"), UInt8(ascii: " "): return [byte]
        case UInt8(ascii: "n"): return [0x0a]
        case UInt8(ascii: "r"): return [0x0d]
        case UInt8(ascii: "t"): return [0x09]
        case UInt8(ascii: "b"): return [0x08]
        case UInt8(ascii: "f"): return [0x0c]
        case UInt8(ascii: "x"): return try unicode(digits: 2)
        case UInt8(ascii: "u"): return try unicode(digits: 4)
        case UInt8(ascii: "U"): return try unicode(digits: 8)
        default: throw YAMLError(line: line, cause: "an escape that YAML and JSON don't know")
        }
    }

    private mutating func unicode(digits: Int) throws(YAMLError) -> [UInt8] {
        var value = try hexadecimal(digits: digits)
        // JSON spells characters beyond the basic plane as two surrogates.
        if digits == 4, (0xd800...0xdbff).contains(value), peek == UInt8(ascii: "\\"),
            peek(ahead: 1) == UInt8(ascii: "u")
        {
            index += 2
            let low = try hexadecimal(digits: 4)
            guard (0xdc00...0xdfff).contains(low) else { throw badCharacter }
            value = 0x10000 + (value - 0xd800) << 10 + (low - 0xdc00)
        }
        guard let scalar = Unicode.Scalar(value), value != 0 else { throw badCharacter }
        return Array(String(Character(scalar)).utf8)
    }

    private var badCharacter: YAMLError {
        YAMLError(line: line, cause: "an escape that is no character")
    }

    private mutating func hexadecimal(digits: Int) throws(YAMLError) -> UInt32 {
        var value: UInt32 = 0
        for _ in 0..<digits {
            guard let byte = peek, let digit = Character(Unicode.Scalar(byte)).hexDigitValue else { throw badCharacter }
            value = value << 4 | UInt32(digit)
            index += 1
        }
        return value
    }
}

extension YAMLNode {
    /// The text of a scalar; empty for anything else.
    var scalarText: String {
        if case .scalar(let text) = content { text } else { "" }
    }
}
