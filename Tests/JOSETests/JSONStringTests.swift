import JOSE
import Testing

@Suite struct JSONStringTests {
    /// The string within a JSON text of raw bytes between quotes, nil if it is refused.
    private func string(_ bytes: [UInt8]) -> String? {
        JSONTests.parse([0x22] + bytes + [0x22])?.string
    }

    @Test("NUL is refused as a byte and as an escape.")
    func nul() {
        #expect(string([0]) == nil)
        #expect(string([0x61, 0, 0x62]) == nil)
        #expect(string(Array(#"\u0000"#.utf8)) == nil)
        #expect(string(Array(#"a\u0000b"#.utf8)) == nil)
        #expect(JSONTests.parse(#"{"\u0000":1}"#) == nil)
        #expect(string(Array(#"\u0001"#.utf8)) == "\u{1}")
        #expect(string(Array(#"\\u0000"#.utf8)) == #"\u0000"#)
    }

    @Test("Control characters have to be escaped.")
    func controlCharacters() {
        for byte in UInt8(0)..<0x20 {
            for padding in 0..<10 {
                #expect(string([UInt8](repeating: 0x61, count: padding) + [byte]) == nil)
                #expect(string([byte] + [UInt8](repeating: 0x61, count: padding)) == nil)
            }
        }
        for byte in UInt8(0x20)..<0x80 where byte != 0x22 && byte != 0x5C {
            #expect(string([byte]) != nil)
        }
    }

    @Test(
        "A lone surrogate is refused.",
        arguments: [
            #"\ud800"#, #"\udbff"#, #"\udc00"#, #"\udfff"#, #"\ud800x"#, #"\ud800\n"#, #"\ud800\u0041"#,
            #"\ud800\ud800"#,
            #"\udc00\ud800"#, #"\ud83d\ude0"#, #"\ud83d\u"#, #"\ud83d\"#, #"\ud83d\ude0g"#, #"\ud83d\ude00\ude00"#,
        ]
    )
    func loneSurrogates(text: String) {
        #expect(string(Array(text.utf8)) == nil)
        #expect(JSONTests.parse("{\"\(text)\":1}") == nil)
    }

    @Test("Escapes mean what RFC 8259 says.")
    func escapes() {
        #expect(string(Array(#"\"\\\/\b\f\n\r\t"#.utf8)) == "\"\\/\u{8}\u{C}\n\r\t")
        #expect(string(Array(#"\u00E9\u20ac\uD834\uDD1E\uffff"#.utf8)) == "é€𝄞\u{FFFF}")
        #expect(string(Array(#"x\u0041y"#.utf8)) == "xAy")
        #expect(string(Array(#"\u007F"#.utf8)) == "\u{7F}")
    }

    @Test("Every character there is can be read, raw and escaped, among others and alone.")
    func everyScalar() {
        for value in stride(from: UInt32(0x20), through: 0x10FFFF, by: 37) {
            guard let scalar = Unicode.Scalar(value), scalar != "\"", scalar != "\\" else { continue }
            let text = String(Character(scalar))
            #expect(string(Array(text.utf8)) == text)
            let escaped = text.utf16.map { "\\u" + String(0x10000 + Int($0), radix: 16).dropFirst() }.joined()
            #expect(string(Array("abcdefgh\(escaped)".utf8)) == "abcdefgh" + text)
        }
    }

    @Test("Only well-formed UTF-8 is taken: every sequence of two and three bytes agrees with the standard library.")
    func sequences() {
        for first in UInt8(0x80)...0xFF {
            #expect(string([first]) == nil)
            for second in UInt8(0)...0xFF where second != 0x22 && second != 0x5C && second >= 0x20 {
                let two = [first, second]
                #expect((string(two) != nil) == (String(validating: two, as: UTF8.self) != nil))
                for third: UInt8 in [0x41, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF] {
                    let three = two + [third]
                    #expect((string(three) != nil) == (String(validating: three, as: UTF8.self) != nil))
                }
            }
        }
    }

    @Test("Four-byte sequences agree with the standard library at every edge.")
    func fourBytes() {
        let edges: [UInt8] = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]
        for first in UInt8(0xE0)...0xFF {
            for second in edges {
                for third in edges {
                    for fourth in edges {
                        let bytes = [first, second, third, fourth]
                        #expect((string(bytes) != nil) == (String(validating: bytes, as: UTF8.self) != nil))
                    }
                }
            }
        }
    }

    @Test(
        "Overlong forms, encoded surrogates and code points after U+10FFFF are refused.",
        arguments: [
            [0xC0, 0x80], [0xC0, 0xAF], [0xC1, 0xBF], [0xE0, 0x80, 0x80], [0xE0, 0x9F, 0xBF], [0xF0, 0x80, 0x80, 0x80],
            [0xF0, 0x8F, 0xBF, 0xBF], [0xED, 0xA0, 0x80], [0xED, 0xBF, 0xBF], [0xED, 0xA0, 0xBD, 0xED, 0xB8, 0x80],
            [0xF4, 0x90, 0x80, 0x80], [0xF5, 0x80, 0x80, 0x80], [0xF8, 0x88, 0x80, 0x80, 0x80], [0xFE], [0xFF], [0xC3],
            [0xE2, 0x82], [0xF0, 0x9F, 0x98], [0x80], [0xBF],
        ] as [[UInt8]]
    )
    func malformedUTF8(bytes: [UInt8]) {
        #expect(string(bytes) == nil)
        #expect(string([0x61] + bytes + [0x62]) == nil)
        #expect(JSONTests.parse([0x22] + bytes) == nil)
    }
}
