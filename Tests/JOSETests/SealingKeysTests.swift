import JOSE
import Testing

@Suite struct SealingKeysTests {
    private func ring(_ names: String...) throws -> SealingKeys {
        try SealingKeys(
            parsing: names.map { name throws(JOSEError) in try SealingKeys.newLine(name: name) }
                .joined(separator: "\n")
        )
    }

    private func code(_ body: () throws -> Void) -> JOSEError.Code? {
        do {
            try body()
            return nil
        } catch {
            return (error as? JOSEError)?.code
        }
    }

    @Test("What the first key sealed opens, also when the key is no longer the first.")
    func roundTrip() throws {
        let lines = try ["old", "new"].map { name in try SealingKeys.newLine(name: name) }
        let old = try SealingKeys(parsing: lines[0])
        let both = try SealingKeys(parsing: lines.reversed().joined(separator: "\n") + "\n")
        #expect(both.names == ["new", "old"] && both.first == "new")
        for content in [[], [0], Array("{\"secret\":\"ä\"}".utf8), [UInt8](repeating: 7, count: 10_000)] as [[UInt8]] {
            let sealed = try old.seal(content)
            #expect(try old.open(sealed) == content)
            #expect(try both.open(sealed) == content)
            #expect(try both.open(both.seal(content)) == content)
            #expect(code { _ = try old.open(both.seal(content)) } == .unknownSealingKey)
        }
    }

    @Test("A sealed text is a compact JWE with exactly this header, and never the same twice.")
    func form() throws {
        let keys = try ring("2026-11")
        let text = String(decoding: try keys.seal([1, 2, 3]), as: UTF8.self)
        let parts = text.split(separator: ".", omittingEmptySubsequences: false).map(String.init)
        #expect(parts.count == 5 && parts[1].isEmpty)
        #expect(
            String(decoding: try Base64URL.decode(parts[0]), as: UTF8.self)
                == #"{"alg":"dir","enc":"A256GCM","kid":"2026-11"}"#
        )
        #expect(try [2, 3, 4].map { try Base64URL.decode(parts[$0]).count } == [12, 3, 16])
        #expect(try keys.seal([1, 2, 3]) != keys.seal([1, 2, 3]))
    }

    @Test("Any altered bit is found.")
    func altered() throws {
        let keys = try ring("k")
        let sealed = try keys.seal(Array("secret".utf8))
        for place in sealed.indices {
            for bit in 0..<8 {
                var changed = sealed
                changed[place] ^= 1 << bit
                if code({ _ = try keys.open(changed) }) == nil { Issue.record("byte \(place), bit \(bit)") }
            }
        }
    }

    @Test("IV, text and tag of other sealed texts don't open, nor do shortened ones.")
    func mixed() throws {
        let keys = try ring("k")
        func parts(_ content: [UInt8]) throws -> [String] {
            String(decoding: try keys.seal(content), as: UTF8.self).split(
                separator: ".",
                omittingEmptySubsequences: false
            ).map(String.init)
        }
        let (one, other) = (try parts([1, 2, 3]), try parts([4, 5, 6]))
        for index in 2...4 {
            var mixed = one
            mixed[index] = other[index]
            #expect(code { _ = try keys.open(Array(mixed.joined(separator: ".").utf8)) } == .notAuthentic)
            mixed[index] = ""
            #expect(code { _ = try keys.open(Array(mixed.joined(separator: ".").utf8)) } != nil)
            mixed[index] = Base64URL.encode([UInt8](try Base64URL.decode(one[index]).dropLast()))
            #expect(code { _ = try keys.open(Array(mixed.joined(separator: ".").utf8)) } != nil)
        }
        #expect(code { _ = try keys.open([]) } == .malformedSealedText)
        var wrapped = one
        wrapped[1] = "AA"
        #expect(code { _ = try keys.open(Array(wrapped.joined(separator: ".").utf8)) } == .malformedSealedText)
        #expect(code { _ = try keys.open(Array((one + [""]).joined(separator: ".").utf8)) } == .malformedSealedText)
    }

    @Test(
        "Only the header of this ring is accepted, whatever else JOSE would allow.",
        arguments: [
            #"{"alg":"dir","enc":"A256GCM","kid":"k","zip":"DEF"}"#, #"{"alg":"dir","enc":"A128GCM","kid":"k"}"#,
            #"{"alg":"none","enc":"A256GCM","kid":"k"}"#, #"{"enc":"A256GCM","alg":"dir","kid":"k"}"#,
            #"{"alg":"dir","enc":"A256GCM"}"#, #"{"alg":"dir","enc":"A256GCM","kid":"k "}"#, "", "{}", "[]",
            #"{"alg":"dir","enc":"A256GCM","kid":"k","kid":"k"}"#, #"{"alg":"dir","enc":"A256GCM","kid":"\u006b"}"#,
        ]
    )
    func header(_ header: String) throws {
        let keys = try ring("k")
        let sealed = String(decoding: try keys.seal([1]), as: UTF8.self)
        let rest = sealed[(sealed.firstIndex(of: ".") ?? sealed.startIndex)...]
        let text = Array((Base64URL.encode(Array(header.utf8)) + rest).utf8)
        #expect(code { _ = try keys.open(text) } == .malformedSealedText)
    }

    @Test("A key that the ring lacks is named; another key of the same name doesn't open.")
    func otherKey() throws {
        let sealed = try ring("2025-01").seal([1])
        do {
            _ = try ring("2026-11").open(sealed)
            Issue.record("It opened.")
        } catch let error as JOSEError {
            #expect(error.code == .unknownSealingKey)
            #expect(error.message.contains("2025-01"))
        }
        #expect(code { _ = try ring("2025-01").open(sealed) } == .notAuthentic)
    }

    @Test("Lines may be empty, indented and separated by commas.")
    func lines() throws {
        let lines = try ["a", "b.2", "c_3-d"].map { name in try SealingKeys.newLine(name: name) }
        #expect(
            try SealingKeys(parsing: "\n  \(lines[0])\r\n\n\t\(lines[1]),\(lines[2])\n").names == ["a", "b.2", "c_3-d"]
        )
    }

    @Test(
        "A mistake is named with its line, and without the key.",
        arguments: [
            ("", "NAME:BASE64"), ("k", "line 1"), ("\nk:", "line 2"), (":AAAA", "line 1"), ("k k:AAAA", "line 1"),
            ("k:c2hvcnQ=", "line 1"), ("k:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "line 1"),
            ("k:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=", "line 1"),
            (
                "k:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
                    + "k:BBBBAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
                "line 2"
            ),
            ("ä:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "line 1"),
            ("k:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= x", "line 1"),
        ]
    )
    func mistakes(text: String, place: String) {
        let error = #expect(throws: JOSEError.self) { try SealingKeys(parsing: text) }
        #expect(error?.code == .malformedSealingKeys)
        #expect(error?.message.contains(place) == true)
        #expect(error?.message.contains("AAAA") == false)
    }

    @Test("The description has the names only.")
    func description() throws {
        let line = try SealingKeys.newLine(name: "k")
        #expect("\(try SealingKeys(parsing: line))" == "k")
        #expect(line.hasPrefix("k:") && line.count == 46)
    }
}
