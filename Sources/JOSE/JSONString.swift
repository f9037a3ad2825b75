import Basics

/// The place of a well-formed JSON string in the text.
struct JSONStringToken {
    /// The first byte after the opening quote.
    let start: Int
    /// The closing quote.
    let end: Int
    let isEscaped: Bool

    /// Scans the string whose opening quote is at `quote`.
    init(scanning bytes: Span<UInt8>, from quote: Int) throws(JOSEError) {
        start = quote + 1
        var index = start
        var escaped = false
        while index < bytes.count {
            switch bytes[index] {
            case UInt8(ascii: "\""):
                end = index
                isEscaped = escaped
                return
            case UInt8(ascii: "\\"):
                escaped = true
                index = try Self.skipEscape(bytes, at: index)
            case 0..<0x20: throw Self.malformed("a JSON string contains an unescaped control character", at: index)
            case 0x80...: index = try Self.skipMultibyte(bytes, at: index)
            default: index += 1
            }
        }
        throw Self.malformed("a JSON string is not closed", at: index)
    }

    private static func skipEscape(_ bytes: Span<UInt8>, at backslash: Int) throws(JOSEError) -> Int {
        guard backslash + 1 < bytes.count else { throw malformed("a JSON string is not closed", at: backslash) }
        switch bytes[backslash + 1] {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"), UInt8(ascii: "b"), UInt8(ascii: "f"),
            UInt8(ascii: "n"), UInt8(ascii: "r"), UInt8(ascii: "t"):
            return backslash + 2
        case UInt8(ascii: "u"):
            guard let unit = unit(bytes, at: backslash) else {
                throw malformed("a \\u escape does not have four hexadecimal digits", at: backslash)
            }
            switch unit {
            case 0: throw malformed("a JSON string contains NUL", at: backslash)
            case 0xDC00...0xDFFF: throw malformed("a JSON string contains a lone surrogate", at: backslash)
            case 0xD800...0xDBFF:
                guard let second = Self.unit(bytes, at: backslash + 6), 0xDC00...0xDFFF ~= second else {
                    throw malformed("a JSON string contains a lone surrogate", at: backslash)
                }
                return backslash + 12
            default: return backslash + 6
            }
        default: throw malformed("a JSON string contains an unknown escape", at: backslash)
        }
    }

    /// Decodes the `\u` escape at `index`; nil if there is none.
    private static func unit(_ bytes: Span<UInt8>, at index: Int) -> UInt32? {
        guard index + 6 <= bytes.count, bytes[index] == UInt8(ascii: "\\"), bytes[index + 1] == UInt8(ascii: "u") else {
            return nil
        }
        var value: UInt32 = 0
        for place in index + 2..<index + 6 {
            guard let digit = bytes[place].hexadecimalDigit else { return nil }
            value = value << 4 | UInt32(digit)
        }
        return value
    }

    /// Skips one character of two to four bytes, in the well-formed sequences of RFC 3629 §4.
    private static func skipMultibyte(_ bytes: Span<UInt8>, at index: Int) throws(JOSEError) -> Int {
        let length: Int
        let second: ClosedRange<UInt8>
        switch bytes[index] {
        case 0xC2...0xDF: (length, second) = (2, 0x80...0xBF)
        case 0xE0: (length, second) = (3, 0xA0...0xBF)
        case 0xED: (length, second) = (3, 0x80...0x9F)
        case 0xE1...0xEF: (length, second) = (3, 0x80...0xBF)
        case 0xF0: (length, second) = (4, 0x90...0xBF)
        case 0xF1...0xF3: (length, second) = (4, 0x80...0xBF)
        case 0xF4: (length, second) = (4, 0x80...0x8F)
        default: throw malformed("a JSON string is not UTF-8", at: index)
        }
        guard index + length <= bytes.count, second.contains(bytes[index + 1]) else {
            throw malformed("a JSON string is not UTF-8", at: index)
        }
        for continuation in index + 2..<index + length where bytes[continuation] & 0xC0 != 0x80 {
            throw malformed("a JSON string is not UTF-8", at: index)
        }
        return index + length
    }

    private static func malformed(_ message: String, at offset: Int) -> JOSEError {
        JOSEError(.malformedJSON, message, at: offset)
    }
}

// MARK: - Content

extension JSONStringToken {
    /// The decoded string. `bytes` is the scanned text.
    func text(of bytes: [UInt8]) -> String {
        if isEscaped { return String(decoding: content(of: bytes), as: UTF8.self) }
        let span = bytes.span.extracting(start..<end)
        // The scan checked that these bytes are UTF-8.
        return String(copying: unsafe UTF8Span(unchecked: span))
    }

    /// The decoded string as UTF-8. `bytes` is the scanned text.
    func content(of bytes: [UInt8]) -> [UInt8] {
        var content: [UInt8] = []
        content.reserveCapacity(end - start)
        appendContent(of: bytes, to: &content)
        return content
    }

    /// Appends the decoded string as UTF-8.
    func appendContent(of bytes: [UInt8], to content: inout [UInt8]) {
        guard isEscaped else {
            content += bytes[start..<end]
            return
        }
        var index = start
        while index < end {
            if bytes[index] != UInt8(ascii: "\\") {
                content.append(bytes[index])
                index += 1
            } else if var value = Self.unit(bytes.span, at: index) {
                index += 6
                if 0xD800...0xDBFF ~= value, let second = Self.unit(bytes.span, at: index) {
                    value = 0x10000 + (value - 0xD800) << 10 + (second - 0xDC00)
                    index += 6
                }
                content.append(contentsOf: String(Unicode.Scalar(value) ?? "\u{FFFD}").utf8)
            } else {
                content.append(Self.simpleEscape(bytes[index + 1]))
                index += 2
            }
        }
    }

    private static func simpleEscape(_ byte: UInt8) -> UInt8 {
        switch byte {
        case UInt8(ascii: "b"): 0x08
        case UInt8(ascii: "f"): 0x0C
        case UInt8(ascii: "n"): 0x0A
        case UInt8(ascii: "r"): 0x0D
        case UInt8(ascii: "t"): 0x09
        default: byte
        }
    }
}
