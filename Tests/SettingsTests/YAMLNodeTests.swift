import Testing

@testable import Settings

@Suite("A file with nested values")
struct YAMLNodeTests {
    @Test(
        "can begin with a byte order mark, in YAML and in JSON.",
        arguments: ["endpoints: {}", #"{"endpoints": {}}"#]
    )
    func byteOrderMark(text: String) throws {
        let node = try YAMLNode(parsing: Array("\u{feff}\(text)".utf8))
        #expect(try node == YAMLNode(parsing: Array(text.utf8)))
    }
}
