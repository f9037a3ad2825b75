import Basics
import Testing

@Suite("Text")
struct TextTests {
    private func json(_ text: String, escapingInvisible: Bool) -> String {
        var json = ""
        json.appendJSON(text, escapingInvisible: escapingInvisible)
        return json
    }

    @Test("A JSON string escapes what RFC 8259 requires.", arguments: [false, true])
    func requiredEscapes(escapingInvisible: Bool) {
        let text = "a\"\\\n\r\t\u{0}\u{1F} é😀"
        #expect(json(text, escapingInvisible: escapingInvisible) == #""a\"\\\n\r\t\u0000\u001f é😀""#)
    }

    @Test("Invisible characters are escaped only on request, outside the basic plane as two surrogates.")
    func invisibleCharacters() {
        let text = "\u{7F}\u{9B}\u{AD}\u{200E}\u{202E}\u{2028}\u{2066}\u{E000}\u{FEFF}\u{E0041}"
        #expect(json(text, escapingInvisible: false) == "\"\(text)\"")
        #expect(
            json(text, escapingInvisible: true)
                == #""\u007f\u009b\u00ad\u200e\u202e\u2028\u2066\ue000\ufeff\udb40\udc41""#
        )
    }

    @Test("Every byte except unreserved characters is percent-encoded.")
    func percentEncoding() {
        #expect("azAZ09-._~".percentEncoded == "azAZ09-._~")
        #expect("/a@b:c#d?e f%+[é\u{0}".percentEncoded == "%2Fa%40b%3Ac%23d%3Fe%20f%25%2B%5B%C3%A9%00")
        #expect("".percentEncoded == "")
    }

    @Test("Percent-encoded bytes are decoded in both cases.")
    func percentDecoding() {
        #expect("a%2Fb%2fc+d"[...].percentDecoded == "a/b/c+d")
        #expect("%C3%A9%00"[...].percentDecoded == "é\u{0}")
        #expect(""[...].percentDecoded == "")
    }

    @Test(
        "A malformed escape and bytes that are not UTF-8 are refused.",
        arguments: ["%", "a%2", "%+5", "%G0", "%0G", "%FF"]
    )
    func malformedEscape(text: String) {
        #expect(text[...].percentDecoded == nil)
    }

    @Test("Bytes are compared, not canonically equivalent characters.")
    func sameBytes() {
        #expect("K" == "\u{212A}")
        #expect(!"K".hasSameBytes(as: "\u{212A}"))
        #expect(!"é".hasSameBytes(as: "e\u{301}"))
        #expect("é".hasSameBytes(as: "é"))
        #expect(!"a".hasSameBytes(as: "ab"))
    }

    @Test("Control characters are found up to the ends of their two ranges.")
    func controlCharacters() {
        for text in ["\u{0}", "a\u{1F}", "\u{7F}b", "\u{80}", "\u{9F}"] { #expect(text.holdsControlCharacter) }
        for text in ["", " ~", "\u{A0}", "é\u{202E}"] { #expect(!text.holdsControlCharacter) }
    }

    @Test(
        "Numbers are grouped by thousands.",
        arguments: [(0, "0"), (999, "999"), (1_000, "1,000"), (-12_345, "-12,345"), (1_234_567, "1,234,567")]
    )
    func grouped(number: Int, text: String) {
        #expect(number.grouped == text)
    }
}
