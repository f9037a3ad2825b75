/// A JSON string that was found to be well formed: where it is, and whether it has to be unescaped.
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
        while true {
            index = Self.skipPlain(bytes, from: index)
            guard index < bytes.count else { throw Self.malformed("a JSON string is not closed", at: index) }
            switch bytes[index] {
            case UInt8(ascii: "\""):
                end = index
                isEscaped = escaped
                return
            case UInt8(ascii: "\\"):
                escaped = true
                index = try Self.skipEscape(bytes, at: index)
            case 0..<0x20: throw Self.malformed("a control character stands unescaped in a JSON string", at: index)
            case 0x80...: index = try Self.skipMultibyte(bytes, at: index)
            default: index += 1
            }
        }
    }

    /// The index of the first byte from `start` on that needs a look: a quote, a backslash, a control character or the
    /// start of a character beyond ASCII. Eight bytes at a time; fewer than eight left are left to the caller.
    private static func skipPlain(_ bytes: Span<UInt8>, from start: Int) -> Int {
        var index = start
        while index <= bytes.count - 8 {
            let word = bytes.word(at: index)
            let marks =
                word.bytesBeyondASCII | word.bytesBelowSpace | word.bytes(equalTo: 0x22) | word.bytes(equalTo: 0x5C)
            if marks != 0 { return index + marks.trailingZeroBitCount / 8 }
            index += 8
        }
        return index
    }

    private static func skipEscape(_ bytes: Span<UInt8>, at backslash: Int) throws(JOSEError) -> Int {
        guard backslash + 1 < bytes.count else { throw malformed("a JSON string is not closed", at: backslash) }
        switch bytes[backslash + 1] {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"), UInt8(ascii: "b"), UInt8(ascii: "f"),
            UInt8(ascii: "n"), UInt8(ascii: "r"), UInt8(ascii: "t"):
            return backslash + 2
        case UInt8(ascii: "u"):
            let unit = try hexadecimal(bytes, from: backslash + 2)
            switch unit {
            case 0: throw malformed("a JSON string holds NUL", at: backslash)
            case 0xDC00...0xDFFF: throw malformed("a JSON string holds a lone surrogate", at: backslash)
            case 0xD800...0xDBFF:
                let next = backslash + 6
                guard next + 1 < bytes.count, bytes[next] == UInt8(ascii: "\\"), bytes[next + 1] == UInt8(ascii: "u"),
                    0xDC00...0xDFFF ~= (try hexadecimal(bytes, from: next + 2))
                else { throw malformed("a JSON string holds a lone surrogate", at: backslash) }
                return next + 6
            default: return backslash + 6
            }
        default: throw malformed("a JSON string holds an unknown escape", at: backslash)
        }
    }

    private static func hexadecimal(_ bytes: Span<UInt8>, from start: Int) throws(JOSEError) -> UInt32 {
        guard start + 4 <= bytes.count else { throw malformed("a \\u escape is too short", at: start) }
        var value: UInt32 = 0
        for index in start..<start + 4 {
            guard let digit = hexadecimalDigit(bytes[index]) else {
                throw malformed("a \\u escape is not four hexadecimal digits", at: index)
            }
            value = value << 4 | digit
        }
        return value
    }

    static func hexadecimalDigit(_ byte: UInt8) -> UInt32? {
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): UInt32(byte - UInt8(ascii: "0"))
        case UInt8(ascii: "a")...UInt8(ascii: "f"): UInt32(byte - UInt8(ascii: "a") + 10)
        case UInt8(ascii: "A")...UInt8(ascii: "F"): UInt32(byte - UInt8(ascii: "A") + 10)
        default: nil
        }
    }

    /// Passes one character of two to four bytes: the well-formed sequences of RFC 3629 §4 and no others.
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
        JOSEError(code: .malformedJSON, message: message, offset: offset)
    }
}
