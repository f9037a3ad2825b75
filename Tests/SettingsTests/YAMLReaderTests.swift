import Testing

@testable import Settings

@Suite("A configuration file")
struct YAMLReaderTests {
    private func items(_ text: String) throws -> [String: String] {
        try ConfigurationFile(parsing: Array(text.utf8)).items.mapValues(\.text)
    }

    @Test("is YAML of keys and values, with comments and quotes.")
    func flat() throws {
        let text = """
            # siwad
            ---
            listen: 0.0.0.0:8080   # every address
            issuer: "https://appleid.apple.com"
            apps: 'A1B2C3D4E5/com.example.app+com.example.it''s'
            database-url: postgres://siwad:p#w@localhost/siwa
            spool_directory:
            batch_limit: 64
            """
        #expect(
            try items(text) == [
                "listen": "0.0.0.0:8080",
                "issuer": "https://appleid.apple.com",
                "apps": "A1B2C3D4E5/com.example.app+com.example.it's",
                "database_url": "postgres://siwad:p#w@localhost/siwa",
                "spool_directory": "",
                "batch_limit": "64",
            ]
        )
    }

    @Test("may nest, and lists become comma-separated.")
    func nested() throws {
        let text = """
            database:
              url: postgres://localhost/siwa
              connections: 2

            keys:
                refresh: 30m
                refresh-floor: 5s
            apps:
            - A1B2C3D4E5/a
            - A1B2C3D4E5/b   # the second
            """
        #expect(
            try items(text) == [
                "database_url": "postgres://localhost/siwa", "database_connections": "2", "keys_refresh": "30m",
                "keys_refresh_floor": "5s", "apps": "A1B2C3D4E5/a,A1B2C3D4E5/b",
            ]
        )
    }

    @Test("may be JSON.")
    func json() throws {
        let text = """
            {
                "listen": "[::1]:8080",
                "database": {"url": "postgres://a\\u0040b:\\ud83d\\ude00\\/x", "connections": 3},
                "apps": ["A1B2C3D4E5/a", "A1B2C3D4E5/b"],
                "tls_key": null
            }
            """
        #expect(
            try items(text) == [
                "listen": "[::1]:8080", "database_url": "postgres://a@b:😀/x", "database_connections": "3",
                "apps": "A1B2C3D4E5/a,A1B2C3D4E5/b", "tls_key": "",
            ]
        )
    }

    @Test("may have keys without a value, and knows them all the same.")
    func withoutValue() throws {
        let file = try ConfigurationFile(parsing: Array("a:\nb: ~\nc: {}\nd:\n  e: null\n".utf8))
        #expect(file.items.mapValues(\.text) == ["a": "", "b": "", "c": "", "d_e": ""])
        #expect(file.items["c"]?.line == 3)
    }

    @Test("knows the line of each key, whatever ends the lines.")
    func lines() throws {
        let file = try ConfigurationFile(parsing: Array("# x\r\n\r\nlisten: a\r\nkeys:\r\n  url: b\r\n".utf8))
        #expect(file.items["listen"] == .init(text: "a", isList: false, line: 3))
        #expect(file.items["keys_url"] == .init(text: "b", isList: false, line: 5))
    }

    @Test("may be empty or only comments.", arguments: ["", "\n\n", "# nothing\n", "---\n...\n", "{}"])
    func empty(text: String) throws {
        #expect(try items(text).isEmpty)
    }

    @Test(
        "that can't be read is refused with its line.",
        arguments: [
            ("listen: a\nlisten: b", 2, "listen is set twice"),
            ("keys_url: a\nkeys:\n  url: b", 3, "keys_url is set twice"),
            ("listen\n", 1, "write settings as key: value"),
            ("listen:a\n", 1, "write settings as key: value"),
            ("a: b: c", 1, "quote a value that holds a colon and a space"),
            ("listen: a\n\tissuer: b", 2, "indent with spaces, not with tabs"),
            ("listen: a\n  b", 2, "unexpected indentation, or a value that goes on in a second line"),
            ("keys:\n    url: a\n  refresh: b", 3, "unexpected indentation, or a value that goes on in a second line"),
            ("issuer: \"abc", 1, "the closing quote is missing on this line"),
            ("issuer: 'abc", 1, "the closing quote is missing on this line"),
            ("issuer: 'abc' def", 1, "unexpected text after the value"),
            ("issuer: |\n  abc", 1, "values over several lines (| and >) are not read"),
            ("issuer: *abc", 1, "anchors, aliases and tags are not read; quote a value that starts so"),
            ("issuer: @abc", 1, "quote a value that starts with such a character"),
            ("listen: a\n---\nlisten: b", 2, "a second document"),
            ("{\"listen\": \"a\"\n", 2, "a comma or the closing bracket of line 1 is missing"),
            ("{\"listen\" \"a\"}", 1, "write the members of {…} as key: value"),
            ("{\"listen\": \"a\"} x", 1, "unexpected text after the value"),
            ("{\"listen\": \"\\q\"}", 1, "an escape that YAML and JSON don't know"),
            ("{\"listen\": \"\\ud800\"}", 1, "an escape that is no character"),
            ("{\"listen\": \"\\u0000\"}", 1, "an escape that is no character"),
            ("- a\n- b", 1, "write settings as key: value"),
            ("apps:\n- {a: b}", 2, "the items of a list must be plain values"),
            ("apps:\n-\n  a", 2, "an item of a list must stand on the line of its hyphen"),
        ]
    )
    func refused(text: String, line: Int, cause: String) {
        #expect(throws: YAMLError(line: line, cause: cause)) { try items(text) }
    }

    @Test("that is nested without end is refused.")
    func deep() {
        #expect(throws: YAMLError(line: 1, cause: "nested too deeply")) {
            try items(String(repeating: "[", count: 100_000))
        }
    }

    @Test("that is not UTF-8 is refused.")
    func encoding() {
        #expect(throws: YAMLError(line: 1, cause: "the file is not UTF-8")) {
            try ConfigurationFile(parsing: [0x61, 0x3a, 0x20, 0xff])
        }
    }

    @Test("never traps, whatever its bytes are.")
    func fuzz() {
        var generator = SplitMix(state: 7)
        let alphabet = Array("ab:-# \n\t\"'{}[],|\\u0041\r.&é".utf8)
        for _ in 0..<20_000 {
            let length = Int.random(in: 0...40, using: &generator)
            let bytes = (0..<length).map { _ in alphabet[Int.random(in: 0..<alphabet.count, using: &generator)] }
            // Only that it returns or throws is asked here.
            _ = try? ConfigurationFile(parsing: bytes)
        }
    }
}

/// A small generator with a seed, so that a failure can be repeated.
private struct SplitMix: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var mixed = state
        mixed = (mixed ^ (mixed >> 30)) &* 0xbf58_476d_1ce4_e5b9
        mixed = (mixed ^ (mixed >> 27)) &* 0x94d0_49bb_1331_11eb
        return mixed ^ (mixed >> 31)
    }
}
