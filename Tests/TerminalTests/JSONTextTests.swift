import Terminal
import Testing

@Suite("JSON output")
struct JSONTextTests {
    @Test("An object keeps the order of its members and is one line.")
    func order() {
        let value = JSONText.object([
            .init("sub", .string("a.b")), .init("count", .integer(3)), .init("live", .bool(true)),
            .init("email", .null), .init("apps", .array([.string("x"), .object([])])),
        ])
        #expect(value.line == #"{"sub":"a.b","count":3,"live":true,"email":null,"apps":["x",{}]}"#)
    }

    @Test("A number has a fraction only if it needs one, and is null if JSON can't express it.")
    func numbers() {
        let numbers: [Double] = [5, 0.5, -2, 1e-7, 1e300, .infinity, -.infinity, .nan]
        let texts = numbers.map { JSONText.number($0).line }
        #expect(texts == ["5", "0.5", "-2", "1e-07", "1e+300", "null", "null", "null"])
    }

    @Test("Control characters are escaped.")
    func escapes() {
        #expect(JSONText.string("a\"\\\n\r\t\u{1b}\u{0}\u{9b}é😀").line == #""a\"\\\n\r\t\u001b\u0000\u009bé😀""#)
    }

    @Test("Invisible characters and characters that change the direction of writing are escaped.")
    func hidden() {
        let hidden: [Unicode.Scalar] = [
            "\u{ad}", "\u{61c}", "\u{200b}", "\u{200e}", "\u{200f}", "\u{202a}", "\u{202e}", "\u{2066}", "\u{2069}",
            "\u{2060}",
            "\u{feff}", "\u{2028}", "\u{e000}", "\u{fff9}",
        ]
        for scalar in hidden {
            let digits = String(scalar.value, radix: 16)
            let escape = "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            #expect(JSONText.string("a\(scalar)b").line == "\"a\(escape)b\"")
            #expect(JSONText.object([.init("\(scalar)", .integer(1))]).line == "{\"\(escape)\":1}")
        }
        // Beyond the basic plane an escape is a pair of surrogates: RFC 8259 §7.
        #expect(JSONText.string("\u{e0041}\u{1d173}").line == #""\udb40\udc41\ud834\udd73""#)
        #expect(JSONText.string("أنا 😀 ü").line == #""أنا 😀 ü""#)
    }
}
