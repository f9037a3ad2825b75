import JOSE
import Testing

@Suite struct JSONMemberNameTests {
    @Test(
        "A repeated name is found among any number of names and at any position.",
        arguments: [2, 16, 17, 18, 64]
    )
    func twice(count: Int) throws {
        for (name, repeated) in [(Self.alike, Self.alike), (Self.short, Self.short), (Self.alike, Self.escaped)] {
            var places: Set<Int> = [0, count / 2, count - 2]
            places.formIntersection(0..<(count - 1))
            for place in places {
                var names = (0..<count).map { "\"\(name($0))\"" }
                #expect(Self.refusal(Self.object(names)) == nil)
                names[count - 1] = "\"\(repeated(place))\""
                let text = Self.object(names)
                let refusal = try #require(Self.refusal(text))
                #expect(refusal.code == .malformedJSON)
                #expect(refusal.message == "a JSON object has a member twice")
                // The later of the two, behind its quote.
                #expect(refusal.offset == text.utf8.count - ":0}".utf8.count - names[count - 1].utf8.count + 1)
            }
        }
    }

    @Test("The error names the first of several repetitions.")
    func several() {
        var names = (0..<40).map { "\"\(Self.alike($0))\"" }
        names[30] = names[2]
        names[20] = names[1]
        names[35] = names[20]
        let refusal = Self.refusal(Self.object(names))
        #expect(refusal?.offset == Self.object(Array(names[..<20])).utf8.count + 1)
    }

    @Test("Names must be unique only within their own object, whether it is the inner or the outer one that is large.")
    func nested() {
        let names = (0..<40).map { "\"\(Self.alike($0))\"" }
        let inner = Self.object(names)
        let outer = Self.object(names, value: inner)
        #expect(Self.refusal(outer) == nil)
        #expect(Self.refusal(Self.object([names[0]], value: outer)) == nil)
        let spoilt = Self.object(names + [names[0]])
        #expect(Self.refusal(Self.object(names, value: spoilt))?.code == .malformedJSON)
        #expect(Self.refusal(Self.object(names + [names[0]], value: inner))?.code == .malformedJSON)
    }

    @Test("The 65th member is refused at its position, whatever the names are.")
    func tooMany() {
        let names = (0..<65).map { "\"\(Self.short($0))\"" }
        #expect(Self.refusal(Self.object(Array(names.dropLast()))) == nil)
        let refusal = Self.refusal(Self.object(names))
        #expect(refusal?.message == "a JSON object has more than 64 members")
        #expect(refusal?.offset == Self.object(Array(names.dropLast())).utf8.count + 1)
    }

    @Test("Objects of 64 similar names take little longer to read than small objects with the same names.")
    func cost() throws {
        let names = (0..<64).map { "\"\(Self.alike($0))\"" }
        let large = Array(repeating: Self.object(names), count: 64)
        let small = (0..<512).map { Self.object(Array(names[($0 % 8 * 8)..<($0 % 8 * 8 + 8)])) }
        let bodies = [large, small].map { Array("[\($0.joined(separator: ","))]".utf8) }
        // Alternately, and the best of each, so that a slow moment of the machine hits both or none.
        var best = [Duration.seconds(3_600), .seconds(3_600)]
        for _ in 0..<5 {
            for (index, body) in bodies.enumerated() {
                let time = ContinuousClock().measure { #expect(JSONTests.isSkipped(body)) }
                best[index] = min(best[index], time)
            }
        }
        // About 2.5 without optimization; 30 where each name is compared with each.
        #expect(best[0] / best[1] < 12)
    }

    /// Equal in length and in the first eight bytes.
    private static func alike(_ number: Int) -> String { "alikename\(1_000 + number)" }

    /// The same name, one of its characters written as an escape.
    private static func escaped(_ number: Int) -> String { #"al\u0069kename\#(1_000 + number)"# }

    private static func short(_ number: Int) -> String { String(number, radix: 36) }

    private static func object(_ names: [String], value: String = "0") -> String {
        "{" + names.map { "\($0):\(value)" }.joined(separator: ",") + "}"
    }

    private static func refusal(_ text: String) -> JOSEError? {
        do throws(JOSEError) {
            _ = try JSONValue(parsing: Array(text.utf8))
            return nil
        } catch {
            return error
        }
    }
}
