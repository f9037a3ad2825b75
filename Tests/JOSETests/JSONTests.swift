import JOSE
import Testing

@Suite struct JSONTests {
    /// The tree of a text, nil if it is refused.
    static func parse(_ text: [UInt8]) -> JSONValue? {
        do throws(JOSEError) {
            return try JSONValue(parsing: text)
        } catch {
            return nil
        }
    }

    static func parse(_ text: String) -> JSONValue? { parse(Array(text.utf8)) }

    /// Reading and skipping must agree on what is JSON: whether `text` can be skipped.
    static func isSkipped(_ text: [UInt8]) -> Bool {
        do throws(JOSEError) {
            var reader = JSONReader(text)
            try reader.skipValue()
            try reader.end()
            return true
        } catch {
            return false
        }
    }

    @Test(
        "What RFC 8259 allows is taken.",
        arguments: [
            "null", "true", "false", "0", "-0", "-1", "1.5", "1e5", "1E+5", "1e-5", "0.0", "0e0",
            "123456789012345678901234567890",
            "\"\"", "\"a\"", "\"é\"", "\"😀\"", "\"\u{7F}\"", "\"\u{FFFE}\"", #""\u00e9""#, #""\uD83D\uDE00""#,
            #""\"\\\/\b\f\n\r\t""#,
            "[]", "[ ]", "[1]", "[1,2]", " [ 1 , 2 ] ", "{}", "{ }", "{\"a\":1}", "{\"a\":{\"a\":1}}",
            "\t\r\n {\"a\" : [ ] }\n",
            #"{"":0}"#, #"{"a":1,"A":2}"#, #"["\u0001"]"#, "\"\u{10FFFF}\"", "\"12345678\"", "\"1234567é\"",
        ]
    )
    func valid(text: String) {
        #expect(Self.parse(text) != nil)
        #expect(Self.isSkipped(Array(text.utf8)))
    }

    @Test(
        "What is not JSON is refused.",
        arguments: [
            "", " ", "nul", "nulll", "True", "NaN", "Infinity", "-Infinity", "undefined", "'a'", "a", ",", ":", "]",
            "}", "[", "{",
            "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1,,2]", "[1}", "{\"a\":1]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
            "{,}", "{a:1}", "{1:1}",
            "{'a':1}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "{null:1}", "[1;2]", "{\"a\":1;\"b\":2}", "{\"a\";1}",
            "{xa\":1}", "+1", ".5", "1.", "1.e5", "1e", "1e+", "-", "--1",
            "-a", "0x10",
            "1_000", "1,5", "\"", "\"a", "\"\\\"", "\"\\", "\"\\x41\"", "\"\\u12\"", "\"\\u12G4\"", "\"\\U0041\"",
            "\"a\nb\"", "\"a\tb\"",
            "// c\n1", "/* */1", "1 /* */", "[1]//", "\u{A0}1", "1\u{B}", "\u{2028}1", "tru\u{0}", "\u{0}", "1\u{0}",
        ]
    )
    func invalid(text: String) {
        #expect(Self.parse(text) == nil)
        #expect(!Self.isSkipped(Array(text.utf8)))
    }

    @Test(
        "Anything behind the value is refused.",
        arguments: ["{}{}", "{} x", "1 2", "[]]", "{},", "\"a\"\"b\"", "null,"]
    )
    func trailingGarbage(text: String) {
        #expect(Self.parse(text) == nil)
    }

    @Test("A byte order mark is refused, whichever it is.")
    func byteOrderMarks() {
        for mark: [UInt8] in [[0xEF, 0xBB, 0xBF], [0xFE, 0xFF], [0xFF, 0xFE], [0xFF, 0xFE, 0, 0]] {
            #expect(Self.parse(mark + Array("{}".utf8)) == nil)
        }
        #expect(Self.parse("{}".utf8.flatMap { [0, $0] }) == nil)
    }

    @Test(
        "A member that comes twice is refused, however it is spelled and wherever it is.",
        arguments: [
            #"{"a":1,"a":1}"#, #"{"a":1,"b":2,"a":3}"#, #"{"a":1,"\u0061":2}"#, #"{"\u0061":1,"a":2}"#,
            #"{"\u0061":1,"\u0061":2}"#,
            #"{"\/":1,"/":2}"#, #"{"":1,"":2}"#, #"[{"x":{"a":1,"a":2}}]"#, #"{"a":{"b":1},"a":2}"#,
            #"{"😀":1,"\ud83d\ude00":2}"#,
            #"{"abcdefghijk":1,"x":0,"abcdefghijk":2}"#, #"{"n":{"q":1,"z":{}},"n":1}"#, #"{"\n":1,"\u000a":2}"#,
        ]
    )
    func duplicateMembers(text: String) {
        #expect(Self.parse(text) == nil)
        #expect(!Self.isSkipped(Array(text.utf8)))
    }

    @Test(
        "Names that only look alike are different members.",
        arguments: [
            #"{"abcdefghi":1,"abcdefghj":2}"#, #"{"abcdefgh":1,"abcdefghi":2}"#, #"{"a":{"a":{"a":1}},"b":{"a":1}}"#,
            "{\"K\":1,\"\u{212A}\":2}", "{\"\u{E9}\":1,\"e\u{301}\":2}", #"[{"a":1},{"a":1}]"#,
        ]
    )
    func distinctMembers(text: String) {
        #expect(Self.parse(text) != nil)
    }

    @Test("An object has at most 64 members, so that hostile objects do not take long.")
    func memberLimit() {
        func object(_ count: Int) -> String { "{" + (0..<count).map { "\"m\($0)\":0" }.joined(separator: ",") + "}" }
        #expect(Self.parse(object(64))?.members?.count == 64)
        #expect(Self.parse(object(65)) == nil)
        #expect(Self.parse("[\(object(64)),\(object(64))]") != nil)
    }

    @Test("Nesting ends at 32 levels.")
    func depth() {
        func nested(_ depth: Int, _ open: String, _ close: String) -> [UInt8] {
            Array((String(repeating: open, count: depth) + "1" + String(repeating: close, count: depth)).utf8)
        }
        for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
            let levels = open == "[{\"a\":" ? 16 : 32
            #expect(Self.parse(nested(levels, open, close)) != nil)
            #expect(Self.parse(nested(levels + 1, open, close)) == nil)
            #expect(!Self.isSkipped(nested(levels + 1, open, close)))
        }
        #expect(Self.parse([UInt8](repeating: UInt8(ascii: "["), count: 65536)) == nil)
    }

    @Test("A tree is written as compact JSON that means the same.")
    func compactText() throws {
        let text = #"{"b":[1,-2.50,1e3,true,false,null],"a":"\"\\\n\u0001é😀/","":{}}"#
        let value = try #require(Self.parse(text))
        #expect(value.compactText == text)
        #expect(Self.parse(" " + text) == value)
        #expect(value["b"]?.array?.first?.integer == 1)
        #expect(value["a"]?.string == "\"\\\n\u{1}é😀/")
        #expect(value["c"] == nil)
    }
}
