import Terminal
import Testing

@Suite("JSON for a pipe")
struct JSONTextTests {
    @Test("keeps the order of its members, on one line.")
    func order() {
        let value = JSONText.object([
            .init("sub", "a.b"), .init("count", 3), .init("live", true), .init("email", JSONText(nil as String?)),
            .init("apps", .array(["x", .object([])])),
        ])
        #expect(value.line == #"{"sub":"a.b","count":3,"live":true,"email":null,"apps":["x",{}]}"#)
    }

    @Test("escapes what would break a line or a terminal.")
    func escapes() {
        #expect(JSONText.string("a\"\\\n\r\t\u{1b}\u{0}\u{9b}é😀").line == #""a\"\\\n\r\t\u001b\u0000\u009bé😀""#)
    }
}
