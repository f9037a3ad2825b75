import Basics
import FoundationEssentials
import JOSE

/// The schemas in deploy/doc/json, with the keywords of JSON Schema that they use. Stricter than a reader of a schema: every
/// member must be declared.
struct JSONSchemas {
    static let directory = #filePath.split(separator: "/").dropLast(4).map { "/\($0)" }.joined() + "/deploy/doc/json"

    /// By file without its extension: the command with hyphens, such as `sessions-list`.
    private let schemas: [String: JSONValue]
    /// The members, such as `sessions-list/sub`, that had a value other than null.
    private var seen: Set<String> = []

    init() throws {
        let files = try FileManager.default.contentsOfDirectory(atPath: Self.directory)
        schemas = try Dictionary(
            uniqueKeysWithValues: files.map { file in
                let text = try String(contentsOfFile: "\(Self.directory)/\(file)", encoding: .utf8)
                return (Self.name(of: file), try JSONValue(parsing: Array(text.utf8)))
            }
        )
    }

    /// `siwad sessions list --json`, by the name of the schema.
    var titles: [String: String] { schemas.mapValues { $0["title"]?.string ?? "" } }

    /// The members that no value had, or only null.
    var unseen: Set<String> {
        Set(schemas.flatMap { Self.members(of: $0.value, at: $0.key) }).subtracting(seen)
    }

    /// What is wrong with a line of output, by the name of its schema.
    mutating func problems(_ line: Substring, _ name: String) -> [String] {
        guard let schema = schemas[name] else { return ["\(name) has no schema"] }
        guard let value = try? JSONValue(parsing: Array(line.utf8)) else { return ["\(name): not JSON: \(line)"] }
        return problems(value, schema, at: name)
    }

    private static func name(of file: String) -> String { String(file.dropLast(".json".count)) }

    private mutating func problems(_ value: JSONValue, _ schema: JSONValue, at path: String) -> [String] {
        if let reference = schema["$ref"]?.string {
            if value != .null { seen.insert(path) }
            // `file.json`, or `file.json#/properties/member`
            let parts = reference.split(separator: "#")
            let name = Self.name(of: String(parts[0]))
            let member = parts.dropFirst().first.map { String($0.dropFirst("/properties/".count)) }
            let target = member.map { schemas[name]?["properties"]?[$0] } ?? schemas[name]
            let place = ([name] + [member].compactMap(\.self)).joined(separator: "/")
            return target.map { problems(value, $0, at: place) } ?? ["\(path): no \(reference)"]
        }
        if let alternatives = schema["anyOf"]?.array {
            var all: [String] = []
            for (number, alternative) in alternatives.enumerated() {
                var copy = self
                let found = copy.problems(value, alternative, at: "\(path)/\(number)")
                guard !found.isEmpty else {
                    self = copy
                    return []
                }
                all += found
            }
            return all
        }
        let types = schema["type"]?.array ?? [schema["type"]].compactMap(\.self)
        guard types.contains(.string(Self.type(of: value))) else { return ["\(path): \(value.compactText)"] }
        if value != .null { seen.insert(path) }
        if let words = schema["enum"]?.array, !words.contains(value) { return ["\(path): \(value.compactText)"] }
        if schema["format"] == .string("date-time"), let text = value.string, WallTime(iso8601: text) == nil {
            return ["\(path): \(text) is no time"]
        }
        if let members = value.members { return problems(members, schema, at: path) }
        guard let items = schema["items"] else { return [] }
        return (value.array ?? []).flatMap { problems($0, items, at: path + "/items") }
    }

    private mutating func problems(_ members: [JSONValue.Member], _ schema: JSONValue, at path: String) -> [String] {
        let required = Set((schema["required"]?.array ?? []).compactMap(\.string))
        var found = required.subtracting(members.map(\.name)).map { "\(path)/\($0) is missing" }
        for member in members {
            if let property = schema["properties"]?[member.name] {
                found += problems(member.value, property, at: "\(path)/\(member.name)")
            } else if let property = schema["additionalProperties"] {
                found += problems(member.value, property, at: "\(path)/any")
            } else {
                found.append("\(path)/\(member.name) is not declared")
            }
        }
        return found
    }

    private static func type(of value: JSONValue) -> String {
        if value.integer != nil { return "integer" }
        return switch value.kind {
        case .null: "null"
        case .boolean: "boolean"
        case .number: "number"
        case .string: "string"
        case .array: "array"
        case .object: "object"
        }
    }

    private static func members(of schema: JSONValue, at path: String) -> [String] {
        let alternatives = (schema["anyOf"]?.array ?? []).enumerated().map { ("\(path)/\($0)", $1) }
        let properties = (schema["properties"]?.members ?? []).map { ("\(path)/\($0.name)", $0.value) }
        let items = schema["items"].map { [(path + "/items", $0)] } ?? []
        return properties.map(\.0) + (alternatives + properties + items).flatMap { members(of: $1, at: $0) }
    }
}
