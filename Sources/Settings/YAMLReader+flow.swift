extension YAMLReader {
    /// A sequence or mapping in brackets, over any number of lines; JSON is one.
    mutating func flow(depth: Int) throws(YAMLError) -> YAMLNode {
        guard depth < 16 else { throw YAMLError(line: line, cause: "nested too deeply") }
        switch peek {
        case UInt8(ascii: "["): return try flowSequence(depth: depth)
        case UInt8(ascii: "{"): return try flowMapping(depth: depth)
        default: return try scalar(stops: .flow)
        }
    }

    private mutating func flowSequence(depth: Int) throws(YAMLError) -> YAMLNode {
        let start = line
        var nodes: [YAMLNode] = []
        index += 1
        try skipToContent(inFlow: true)
        while peek != UInt8(ascii: "]") {
            nodes.append(try flow(depth: depth + 1))
            try separator(closing: UInt8(ascii: "]"), openedOn: start)
        }
        index += 1
        return YAMLNode(content: .sequence(nodes), line: start)
    }

    private mutating func flowMapping(depth: Int) throws(YAMLError) -> YAMLNode {
        let start = line
        var members: [YAMLNode.Member] = []
        index += 1
        try skipToContent(inFlow: true)
        while peek != UInt8(ascii: "}") {
            let keyLine = line
            let key = try scalar(stops: .flow)
            try skipToContent(inFlow: true)
            guard peek == UInt8(ascii: ":"), key.content != .null else {
                throw YAMLError(line: keyLine, cause: "write the members of {…} as key: value")
            }
            index += 1
            try skipToContent(inFlow: true)
            members.append(.init(key: key.scalarText, value: try flow(depth: depth + 1)))
            try separator(closing: UInt8(ascii: "}"), openedOn: start)
        }
        index += 1
        try refuseDuplicates(members)
        return YAMLNode(content: .mapping(members), line: start)
    }

    private mutating func separator(closing: UInt8, openedOn start: Int) throws(YAMLError) {
        try skipToContent(inFlow: true)
        switch peek {
        case closing:
            return
        case UInt8(ascii: ","):
            index += 1
            try skipToContent(inFlow: true)
        default:
            throw YAMLError(line: line, cause: "a comma or the closing bracket of line \(start) is missing")
        }
    }
}
