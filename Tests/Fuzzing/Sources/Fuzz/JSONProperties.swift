import JOSE

/// Reading and skipping take the same texts; what is taken is UTF-8 without NUL and is written as JSON that means the
/// same.
enum JSONProperties {
    static func check(_ input: [UInt8]) {
        let value = try? JSONValue(parsing: input)
        require(isSkipped(input) == (value != nil), "what is skipped is held to the same rules as what is read")
        guard let value else { return }
        require(String(validating: input, as: UTF8.self) != nil, "a text that is read is UTF-8")
        require(!input.contains(0), "a text that is read holds no NUL")
        require(depth(of: value) <= JSONReader.maximumDepth, "a text that is read is at most 32 levels deep")
        let text = value.compactText
        require((try? JSONValue(parsing: Array(text.utf8))) == value, "what is written means the same")
        if let integer = value.integer {
            require(JSONValue.number(JSONNumber(integer)).integer == integer, "an integer keeps its value")
        }
    }

    private static func isSkipped(_ input: [UInt8]) -> Bool {
        do {
            var reader = JSONReader(input)
            try reader.skipValue()
            try reader.end()
            return true
        } catch {
            return false
        }
    }

    private static func depth(of value: JSONValue) -> Int {
        switch value {
        case .object(let members): 1 + (members.map { depth(of: $0.value) }.max() ?? 0)
        case .array(let elements): 1 + (elements.map { depth(of: $0) }.max() ?? 0)
        case .null, .boolean, .number, .string: 0
        }
    }
}
