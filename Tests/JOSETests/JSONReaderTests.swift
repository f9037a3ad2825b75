import JOSE
import Testing

@Suite struct JSONReaderTests {
    @Test("Claims and a nested text of events are read value by value.")
    func claims() throws {
        let text = #"{"iss":"a","exp":1657703492,"ok":true,"events":"{\"type\":\"x\",\"n\":[1,{}]}","more":[null,1.5]}"#
        var reader = JSONReader(Array(text.utf8))
        var names: [String] = []
        var type = ""
        try reader.beginObject()
        while try reader.nextMember() {
            names.append(reader.memberName())
            if reader.nameIs("iss") {
                #expect(try reader.string() == "a")
            } else if reader.nameIs("exp") {
                #expect(try reader.integerOrSkip() == 1_657_703_492)
            } else if reader.nameIs("ok") {
                #expect(try reader.boolean())
            } else if reader.nameIs("events") {
                var inner = JSONReader(try reader.utf8())
                try inner.beginObject()
                while try inner.nextMember() {
                    if inner.nameIs("type") { type = try inner.string() } else { try inner.skipValue() }
                }
                try inner.end()
            } else {
                try reader.skipValue()
            }
        }
        try reader.end()
        #expect(names == ["iss", "exp", "ok", "events", "more"])
        #expect(type == "x")
    }

    @Test("A value of another type than asked for is a type mismatch, or skipped where that was asked for.")
    func otherTypes() throws {
        let asString = code {
            var reader = JSONReader(Array("1".utf8))
            _ = try reader.string()
        }
        let asBoolean = code {
            var reader = JSONReader(Array(#""1""#.utf8))
            _ = try reader.boolean()
        }
        let asObject = code {
            var reader = JSONReader(Array("[]".utf8))
            try reader.beginObject()
        }
        #expect([asString, asBoolean, asObject] == [.typeMismatch, .typeMismatch, .typeMismatch])
        var reader = JSONReader(Array(#"[{"a":[1]},"s",2,2.5]"#.utf8))
        try reader.beginArray()
        #expect(try reader.nextElement())
        #expect(try reader.stringOrSkip() == nil)
        #expect(try reader.nextElement())
        #expect(try reader.integerOrSkip() == nil)
        #expect(try reader.nextElement())
        #expect(try reader.integerOrSkip() == 2)
        #expect(try reader.nextElement())
        #expect(try reader.integerOrSkip() == nil)
        #expect(try !reader.nextElement())
        try reader.end()
    }

    @Test("A reader used out of turn throws and does not trap.")
    func misuse() {
        #expect(throws: JOSEError.self) {
            var reader = JSONReader(Array(#"{"a":1}"#.utf8))
            _ = try reader.nextMember()
        }
        #expect(throws: JOSEError.self) {
            var reader = JSONReader(Array(#"{"a":1,"b":2}"#.utf8))
            try reader.beginObject()
            _ = try reader.nextMember()
            _ = try reader.nextMember()
        }
        #expect(throws: JOSEError.self) {
            var reader = JSONReader(Array(#"[1]"#.utf8))
            try reader.beginArray()
            _ = try reader.nextMember()
        }
        #expect(throws: JOSEError.self) {
            var reader = JSONReader(Array(#"[1]"#.utf8))
            try reader.beginArray()
            try reader.end()
        }
        let reader = JSONReader([])
        let isNamed = reader.nameIs("ab")
        let name = reader.memberName()
        #expect(!isNamed && name == "")
    }

    @Test("The name of a member is compared after its escapes are undone.")
    func escapedNames() throws {
        var reader = JSONReader(Array(#"{"\u0069ss":1}"#.utf8))
        try reader.beginObject()
        #expect(try reader.nextMember())
        let answers = [reader.nameIs("iss"), reader.nameIs("isz"), reader.nameIs("is")]
        let name = reader.memberName()
        #expect(answers == [true, false, false])
        #expect(name == "iss")
    }

    @Test("A name of one character, and one of none, is compared like any other.")
    func shortNames() throws {
        var reader = JSONReader(Array(#"{"n":1,"":2}"#.utf8))
        try reader.beginObject()
        #expect(try reader.nextMember())
        let first = [reader.nameIs("n"), reader.nameIs("m"), reader.nameIs("")]
        #expect(first == [true, false, false])
        try reader.skipValue()
        #expect(try reader.nextMember())
        let second = [reader.nameIs("n"), reader.nameIs("")]
        #expect(second == [false, true])
    }

    @Test("Changed, cut and spliced texts are taken or refused, and never trap.")
    func mutations() {
        let seeds = [
            #"{"iss":"https://appleid.apple.com","exp":1657703492,"events":"{\"type\":\"a\u00e9\ud83d\ude00\"}"}"#,
            #"[[[[{"a":-1.5e-3,"b":[true,false,null,"\\\"\/\b\f\n\r\t"]}]]],"é😀",0,-0,1E400]"#,
        ].map { Array($0.utf8) }
        var generator = SeededGenerator(5)
        var taken = 0
        for round in 0..<20_000 {
            var text = seeds[round % seeds.count]
            for _ in 0..<Int.random(in: 1...4, using: &generator) {
                let place = Int.random(in: 0..<text.count, using: &generator)
                switch Int.random(in: 0..<4, using: &generator) {
                case 0: text[place] = UInt8.random(in: 0...255, using: &generator)
                case 1: text.insert(UInt8.random(in: 0...255, using: &generator), at: place)
                case 2 where text.count > 1: text.remove(at: place)
                default: text.append(contentsOf: text[place...])
                }
            }
            guard let value = JSONTests.parse(text) else { continue }
            taken += 1
            #expect(JSONTests.parse(Array(value.compactText.utf8)) == value)
        }
        #expect(taken > 100)
    }

    private func code(_ body: () throws -> Void) -> JOSEError.Code? {
        do {
            try body()
            return nil
        } catch {
            return (error as? JOSEError)?.code
        }
    }
}
