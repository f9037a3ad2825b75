import Testing

@testable import Settings

@Suite("A configuration file")
struct ConfigurationFileTests {
    private func items(_ text: String) throws -> [String: String] {
        try ConfigurationFile(parsing: Array(text.utf8)).items.mapValues(\.text)
    }

    @Test("can be YAML with keys and values, comments and quotes.")
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
            notification_path: "/a\\u0040b:\\ud83d\\ude00\\/\\"x"   # escapes as in JSON
            """
        #expect(
            try items(text) == [
                "listen": "0.0.0.0:8080",
                "issuer": "https://appleid.apple.com",
                "apps": "A1B2C3D4E5/com.example.app+com.example.it's",
                "database_url": "postgres://siwad:p#w@localhost/siwa",
                "spool_directory": "",
                "batch_limit": "64",
                "notification_path": "/a@b:😀/\"x",
            ]
        )
    }

    @Test("can have lists, which become comma-separated.", arguments: ["", "  "])
    func lists(indentation: String) throws {
        let text = """
            database_connections: 2

            apps:   # two
            \(indentation)- A1B2C3D4E5/a

            # and
            \(indentation)- "A1B2C3D4E5/b"   # the second
            keys.refresh: 30m
            """
        #expect(
            try items(text) == [
                "database_connections": "2", "keys_refresh": "30m", "apps": "A1B2C3D4E5/a,A1B2C3D4E5/b",
            ]
        )
    }

    @Test("can be JSON.")
    func json() throws {
        let text = """
            {
                "listen": "[::1]:8080",
                "database_url": "postgres://a\\u0040b:\\ud83d\\ude00\\/x", "database-connections": 3,
                "apps": ["A1B2C3D4E5/a", "A1B2C3D4E5/b"],
                "tls_key": null,
                "issuer": "\\":\\\\"
            }
            """
        #expect(
            try items(text) == [
                "listen": "[::1]:8080", "database_url": "postgres://a@b:😀/x", "database_connections": "3",
                "apps": "A1B2C3D4E5/a,A1B2C3D4E5/b", "tls_key": "", "issuer": "\":\\",
            ]
        )
        let lines = try ConfigurationFile(parsing: Array(text.utf8)).items.mapValues(\.line)
        #expect(lines["database_connections"] == 3 && lines["apps"] == 4 && lines["issuer"] == 6)
    }

    @Test("can have keys without a value.")
    func withoutValue() throws {
        let file = try ConfigurationFile(parsing: Array("a:\nb: ~\nc: null # none\nd:\n".utf8))
        #expect(file.items.mapValues(\.text) == ["a": "", "b": "", "c": "", "d": ""])
        #expect(file.items["c"]?.line == 3)
    }

    @Test("has a line number for each key, with any line end and a byte order mark.")
    func lines() throws {
        let file = try ConfigurationFile(parsing: Array("\u{feff}# x\r\n\r\nlisten: a\r\nkeys_url: b\nissuer: c".utf8))
        #expect(file.items["listen"] == .init(text: "a", isList: false, line: 3))
        #expect(file.items["keys_url"] == .init(text: "b", isList: false, line: 4))
        #expect(file.items["issuer"] == .init(text: "c", isList: false, line: 5))
    }

    @Test("can be empty or hold only comments.", arguments: ["", "\n\n", "# nothing\n", "---\n...\n", "{}", " \t\n"])
    func empty(text: String) throws {
        #expect(try items(text).isEmpty)
    }

    private static let place = "write settings as key: value"
    private static let whole = "write a setting as one value or a list of values, under its whole name"
    private static let nested =
        "settings are not nested: write the whole key, such as keys_url, at the start of a line, and its value on that line"
    private static let item = "write list items below their key, all with the same indentation"
    private static let quotes = "put the value in quotes: its first character has a meaning in YAML"
    private static let flow =
        "[…] and {…} are not supported in YAML: write each item of a list on its own line, after a hyphen"

    @Test(
        "is refused with line and column where it cannot be read.",
        arguments: [
            ("listen: a\nlisten: b", 2, 1, "listen is set twice: keep one of the two"),
            ("keys_url: a\nkeys-url: b", 2, 1, "keys_url is set twice: keep one of the two"),
            ("{\"keys_url\": 1,\n\"keys.url\": 2}", 2, 1, "keys_url is set twice: keep one of the two"),
            ("listen\n", 1, 1, place), ("listen:a\n", 1, 1, place), ("a b: c", 1, 1, place), (": a", 1, 1, place),
            ("a: b: c", 1, 5, "put a value with a colon and a space in quotes"),
            ("listen: a\n\tissuer: b", 2, 1, nested), ("listen: a\n  b", 2, 3, nested),
            ("keys:\n    url: a\n", 2, 5, nested),
            ("issuer: \"abc", 1, 9, "the closing quote is missing"),
            ("issuer: 'abc", 1, 9, "the closing quote is missing"),
            ("issuer: \"abc\\\"", 1, 9, "the closing quote is missing"),
            ("issuer: 'abc' def", 1, 14, "unexpected text after the value"),
            ("issuer: 'abc'#def", 1, 14, "unexpected text after the value"),
            ("issuer: |\n  abc", 1, 9, "| and > are not supported: write the value on one line"),
            ("issuer: *abc", 1, 9, quotes), ("issuer: @abc", 1, 9, quotes), ("issuer: - a", 1, 9, quotes),
            ("apps: []", 1, 7, flow), ("apps:\n- {a: b}", 2, 3, flow),
            ("listen: a\n---\nissuer: b", 2, 1, place), ("- a\n- b", 1, 2, item), ("a: b\n- c", 2, 2, item),
            ("apps:\n- a\n  - b", 3, 4, item), ("apps:\n-\n  a", 2, 2, "write the item on the line of its hyphen"),
            ("{\"listen\": \"a\"\n", 2, 1, "this is not JSON: a JSON object or array is not closed"),
            ("{\"listen\" \"a\"}", 1, 11, "this is not JSON: a colon is expected after a member name"),
            ("{\"listen\": \"a\"} x", 1, 17, "this is not JSON: something follows the JSON value"),
            ("{\n\"keys\": {\"url\": 1}}", 2, 1, whole), ("{\"apps\": [[]]}", 1, 1, whole),
        ]
    )
    func refused(text: String, line: Int, column: Int, cause: String) {
        #expect(throws: ConfigurationFileError(line: line, column: column, cause: cause)) { try items(text) }
    }

    @Test(
        "is refused if an escape in double quotes is not one of JSON.",
        arguments: ["\\q", "\\ud800", "\\u0000", "\\x41"]
    )
    func escapes(escape: String) throws {
        for text in ["listen: \"\(escape)\"", "{\"listen\": \"\(escape)\"}"] {
            let error = #expect(throws: ConfigurationFileError.self) { try items(text) }
            #expect(error?.line == 1)
        }
    }

    @Test("is read or refused quickly, for any content.", .timeLimit(.minutes(1)))
    func hostile() {
        let texts = [
            String(repeating: "[", count: 100_000), String(repeating: "{\"a\":", count: 100_000),
            "a: '" + String(repeating: "''", count: 100_000), "a: \"" + String(repeating: "\\\\", count: 100_000),
            "a: b" + String(repeating: " ", count: 100_000) + "c", String(repeating: "a: ", count: 100_000),
            "apps:\n" + String(repeating: "- a\n", count: 100_000), String(repeating: "-", count: 100_000),
        ]
        for text in texts {
            // Only the time limit is tested here.
            _ = try? ConfigurationFile(parsing: Array(text.utf8))
        }
    }

    @Test("is refused if it is not UTF-8.")
    func encoding() {
        #expect(throws: ConfigurationFileError(line: 1, column: 1, cause: "the file is not UTF-8")) {
            try ConfigurationFile(parsing: [0x61, 0x3a, 0x20, 0xff])
        }
    }

    @Test("never causes a trap, with random bytes.")
    func fuzz() {
        var generator = SplitMix(state: 7)
        let alphabet = Array("ab:-# \n\t\"'{}[],|\\u0041\r.&é".utf8)
        for _ in 0..<20_000 {
            let length = Int.random(in: 0...40, using: &generator)
            let bytes = (0..<length).map { _ in alphabet[Int.random(in: 0..<alphabet.count, using: &generator)] }
            // Only that it returns or throws is tested here.
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
