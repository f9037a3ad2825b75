/// The settings of a configuration file, YAML or JSON, before their values are looked at.
struct ConfigurationFile: Sendable, Equatable {
    /// A value and where it stands.
    struct Item: Sendable, Equatable {
        /// The items of a list are joined with commas. Empty: the key has no value, or no members.
        var text: String
        var isList: Bool
        var line: Int
    }

    /// By key, the parts of a nested key joined with `_`; hyphens and dots count as `_`.
    var items: [String: Item] = [:]

    /// An empty file.
    init() {}

    /// - Throws: An error that names the line, without the path.
    init(parsing bytes: [UInt8]) throws(YAMLError) {
        var reader = try YAMLReader(bytes)
        guard let root = try reader.document() else { return }
        try add(root, prefix: "")
    }

    private mutating func add(_ node: YAMLNode, prefix: String) throws(YAMLError) {
        switch node.content {
        case .mapping(let members):
            if members.isEmpty, !prefix.isEmpty { try addEmpty(node, named: prefix) }
            for member in members {
                let name = String(member.key.map { $0 == "-" || $0 == "." ? "_" : $0 })
                try add(member.value, prefix: prefix.isEmpty ? name : prefix + "_" + name)
            }
        case .sequence(let nodes):
            var texts: [String] = []
            for node in nodes {
                guard case .scalar(let text) = node.content else {
                    throw YAMLError(line: node.line, cause: "the items of a list must be plain values")
                }
                texts.append(text)
            }
            try add(Item(text: texts.joined(separator: ","), isList: true, line: node.line), named: prefix)
        case .scalar(let text):
            try add(Item(text: text, isList: false, line: node.line), named: prefix)
        case .null:
            try addEmpty(node, named: prefix)
        }
    }

    /// Its name is to be checked all the same.
    private mutating func addEmpty(_ node: YAMLNode, named name: String) throws(YAMLError) {
        try add(Item(text: "", isList: false, line: node.line), named: name)
    }

    private mutating func add(_ item: Item, named name: String) throws(YAMLError) {
        guard !name.isEmpty else {
            throw YAMLError(line: item.line, cause: "write settings as key: value")
        }
        guard items.updateValue(item, forKey: name) == nil else {
            throw YAMLError(line: item.line, cause: "\(Unshown.shown(name)) is set twice")
        }
    }
}
