import StoreTestSupport

/// JSON texts that parsers disagree about, by the places where RFC 8259 is exact or silent, and any number of others.
enum JSONSamples {
    static var all: [[UInt8]] { texts.map { Array($0.utf8) } + bytes + nested }

    private static let texts: [String] = structure + numbers + strings + words

    private static let structure = [
        "", " ", "{}", "[]", "[[]]", "{\"a\":{}}", " {} ", "\t[\n]\r", "{\"a\":1,\"b\":2}", "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}", "{\"\":1}", "{\"\":1,\"\":2}", "[1,2]", "[1,]", "[,1]", "[,]", "[1,,2]", "[1 2]",
        "[1",
        "[", "]", "{", "}", "{]", "[}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{a:1}", "{'a':1}", "{1:1}",
        "{\"a\" 1}",
        "{\"a\"::1}", "{\"a\":1 \"b\":2}", "{\"a\":1}}", "[]]", "[] []", "{} {}", "{}x", "[1]//", "/**/[]", "[1]/*x*/",
        "#[]", "[1];", "[1;2]", "{\"a\":1;\"b\":2}", "{\"a\";1}", "{\"a\"=1}", "{xa\":1}", "{\"a\":[{\"b\":[{}]}]}",
        "[{\"a\":1},{\"a\":1}]", "[\"\",\"\"]", "\u{FEFF}{}", "{}\u{FEFF}",
        "\u{A0}[]", "[]\u{2028}", "\u{0B}[]", "\u{0C}[]", "[\u{0C}]", "<a/>", "{\"a\":b}", "[*]", "[\\]", "[\"a\"\n]",
        "{\"a\":\"b\"}#", "[1,\n1\n,1", "{\"K\":1,\"\u{212A}\":2}", "{\"é\":1,\"e\u{301}\":2}",
        "{\"a\\u0020\":1,\"a \":2}",
    ]

    private static let numbers = [
        "0", "-0", "1", "-1", "01", "-01", "00", "1.0", "1.", ".5", "-.5", "1e1", "1E1", "1e+1", "1e-1", "1e", "1e+",
        "1e1.5",
        "0e1", "0E+1", "0.0", "0.1e2", "+1", "++1", "--1", "-", "- 1", "1 000", "1_000", "0x1", "0b1", "1a", "1.2.3",
        "1e1e1",
        "Infinity", "-Infinity", "NaN", "1e400", "-1e400", "1e-400", "9223372036854775807", "9223372036854775808",
        "-9223372036854775808", "-9223372036854775809", "123456789012345678901234567890",
        "0.00000000000000000000000000000000000000000000000001", "1.7976931348623157e308", "1e999999999", "[1e]", "[-]",
        "[0.]", "[1.e1]", "[.1]", "[2.e3]", "[0e]", "[0e+]", "[1eE2]", "[-2.]", "[1+2]", "[0x42]", "[1\u{665}]",
        "\u{FF11}",
    ]

    private static let strings = [
        "\"\"", "\"a\"", "\"\\\"\"", "\"\\\\\"", "\"\\/\"", "\"/\"", "\"\\b\\f\\n\\r\\t\"", "\"\\a\"", "\"\\x41\"",
        "\"\\'\"",
        "\"\\0\"", "\"\\u0041\"", "\"\\u00e9\"", "\"\\u00E9\"", "\"\\U0041\"", "\"\\u004\"", "\"\\u\"", "\"\\u00g0\"",
        "\"\\u 041\"", "\"\\u+041\"", "\"\\u-041\"", "\"\\u0000\"", "\"a\\u0000b\"", "\"\\u0001\"", "\"\\u001f\"",
        "\"\\u007f\"",
        "\"\\ud83d\\ude00\"", "\"\\uD83D\\uDE00\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\ude00\\ud83d\"",
        "\"\\ud83d\\ud83d\"",
        "\"\\ud83d x\"", "\"\\ud83d\\n\"", "\"\\ud83d\\u0041\"", "\"\\ud83d\\u\"", "\"\\uDBFF\\uDFFF\"",
        "\"\\uD800\\uDC00\"",
        "\"\\uFFFE\"", "\"\\uFFFF\"", "\"\\uFDD0\"", "\"\u{FFFF}\"", "\"\u{10FFFF}\"", "\"\u{7F}\"", "\"\u{80}\"",
        "\"\u{2028}\"",
        "\"\t\"", "\"\n\"", "\"\r\"", "\"\u{1F}\"", "\"\u{1}\"", "\"", "\"a", "a\"", "\"\\", "\"\\\"", "'a'", "\"a\"b",
        "\"a\" \"b\"",
        "{\"\\u0000\":1}", "{\"\\ud800\":1}", "{\"a\n\":1}", "[\"\\u00A\"]", "[\"\\ud834\\udd\"]", "[\"\\uDd1ea\"]",
        "[\"😀\"]",
    ]

    private static let words = [
        "true", "false", "null", "True", "TRUE", "nul", "nulll", "tru", "truee", "fals", "nil", "undefined",
        "[true,false,null]",
        "[nulltrue]", "true false", "t", "[t]", "[truth]", "[fals]", "\u{FF54}rue",
    ]

    /// What isn't UTF-8, whole or cut, in a string, as a name and by itself.
    private static let bytes: [[UInt8]] = {
        let sequences: [[UInt8]] = [
            [0x00], [0x80], [0xBF], [0xC0, 0x80], [0xC1, 0xBF], [0xC2], [0xC2, 0x41], [0xE0, 0x80, 0x80],
            [0xE0, 0x9F, 0xBF],
            [0xE2, 0x82], [0xED, 0xA0, 0x80], [0xED, 0xBF, 0xBF], [0xF0, 0x80, 0x80, 0x80], [0xF0, 0x8F, 0xBF, 0xBF],
            [0xF0, 0x9F, 0x98], [0xF4, 0x90, 0x80, 0x80], [0xF5, 0x80, 0x80, 0x80], [0xFE], [0xFF],
            [0xF8, 0x88, 0x80, 0x80, 0x80],
            [0xEF, 0xBB, 0xBF], [0xFF, 0xFE], [0xFE, 0xFF], [0xC3, 0xA9], [0xE2, 0x82, 0xAC], [0xF0, 0x9F, 0x98, 0x80],
        ]
        let shells: [(before: [UInt8], after: [UInt8])] = [
            ([0x22], [0x22]), ([0x7B, 0x22], [0x22, 0x3A, 0x31, 0x7D]), ([], []), ([], [0x7B, 0x7D]),
            ([0x7B, 0x7D], []),
            ([0x22, 0x61], []),
        ]
        return sequences.flatMap { sequence in
            shells.map { $0.before + sequence + $0.after }
        }
    }()

    private static let nested: [[UInt8]] = [1, 2, 31, 32, 33, 34, 500].flatMap { depth in
        let open = String(repeating: "[", count: depth)
        let close = String(repeating: "]", count: depth)
        let objects = String(repeating: "{\"a\":", count: depth) + "1" + String(repeating: "}", count: depth)
        return [open + close, open, open + close + "]", objects].map { Array($0.utf8) }
    }

    /// A valid text, except that a member may be repeated and an escape may be a lone surrogate.
    static func value(depth: Int, using generator: inout SeededGenerator) -> String {
        let space = ["", "", "", " ", "\n", "\t ", "\r\n"].randomElement(using: &generator) ?? ""
        let content =
            switch Int.random(in: 0..<(depth > 0 ? 8 : 5), using: &generator) {
            case 0: ["true", "false", "null"].randomElement(using: &generator) ?? ""
            case 1, 2: number(using: &generator)
            case 3, 4: string(using: &generator)
            case 5: "[" + list(using: &generator) { value(depth: depth - 1, using: &$0) } + "]"
            default:
                "{"
                    + list(using: &generator) { generator in
                        string(using: &generator) + ":" + value(depth: depth - 1, using: &generator)
                    } + "}"
            }
        return space + content + space
    }

    private static func list(
        using generator: inout SeededGenerator,
        _ element: (inout SeededGenerator) -> String
    ) -> String {
        (0..<Int.random(in: 0..<4, using: &generator)).map { _ in element(&generator) }.joined(separator: ",")
    }

    private static func number(using generator: inout SeededGenerator) -> String {
        var text = Bool.random(using: &generator) ? "" : "-"
        text += "\(UInt32.random(in: 0...1_000_000, using: &generator))"
        if Bool.random(using: &generator) { text += ".\(UInt16.random(in: .min ... .max, using: &generator))" }
        if Int.random(in: 0..<3, using: &generator) == 0 {
            text += ["e", "E", "e+", "e-"].randomElement(using: &generator) ?? ""
            text += "\(Int.random(in: 0..<40, using: &generator))"
        }
        return text
    }

    private static func string(using generator: inout SeededGenerator) -> String {
        let pieces = [
            "a", "b", "k", " ", "é", "e\u{301}", "😀", "\\n", "\\\"", "\\\\", "\\/", "\\u0061", "\\u00e9",
            "\\ud83d\\ude00",
            "\\u0001", "\u{7F}", "longer than eight bytes",
        ]
        let rare = ["\\ud83d", "\\u0000", "\\x", "\n"]
        var text = ""
        for _ in 0..<Int.random(in: 0..<4, using: &generator) {
            let isRare = Int.random(in: 0..<60, using: &generator) == 0
            text += (isRare ? rare : pieces).randomElement(using: &generator) ?? ""
        }
        return "\"\(text)\""
    }

    /// Changes, removes, repeats or adds one to three bytes.
    static func damage(_ text: inout [UInt8], using generator: inout SeededGenerator) {
        let telling = Array("{}[]\",:\\u0e-+.tfn \u{1}".utf8) + [0x00, 0x80, 0xC3, 0xED, 0xFF]
        for _ in 0..<Int.random(in: 1...3, using: &generator) where !text.isEmpty {
            let place = Int.random(in: text.indices, using: &generator)
            let byte = telling.randomElement(using: &generator) ?? 0
            switch Int.random(in: 0..<4, using: &generator) {
            case 0: text[place] = byte
            case 1: text.remove(at: place)
            case 2: text.insert(text[place], at: place)
            default: text.insert(byte, at: place)
            }
        }
    }
}
