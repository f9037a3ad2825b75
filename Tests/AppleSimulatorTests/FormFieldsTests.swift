import AppleSimulator
import Testing

@Suite("Forms")
struct FormFieldsTests {
    @Test("Fields are decoded.")
    func decoded() throws {
        let form = try #require(FormFields(parsing: Array("a=1%2B1&b=x+y&c=&%64".utf8)))
        #expect(form["a"] == "1+1" && form["b"] == "x y" && form["c"] == nil && form["d"] == nil)
        #expect(form.names == ["a", "b", "c", "d"])
    }

    @Test("Malformed forms are refused.", arguments: ["a=1&a=2", "a=%4", "a=%zz", "a=%ff"])
    func malformed(_ text: String) {
        #expect(FormFields(parsing: Array(text.utf8)) == nil)
        #expect(FormFields(parsing: Array((0..<17).map { "f\($0)=" }.joined(separator: "&").utf8)) == nil)
    }
}
