import FoundationEssentials
import Testing

@Suite("The documents")
struct DocumentationTests {
    private static let root = #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined()
    private static let documents = [
        "README.md", "deploy/doc/architecture.md", "deploy/doc/contributing.md", "deploy/doc/durability.md",
        "deploy/doc/threat-model.md",
    ]

    private func text(_ document: String) throws -> String {
        try String(contentsOfFile: "\(Self.root)/\(document)", encoding: .utf8)
    }

    @Test("Every link from a document to a file has a target.", arguments: documents)
    func links(document: String) throws {
        let folder = document.split(separator: "/").dropLast().map { "/\($0)" }.joined()
        let targets = try text(document).split(separator: "](").dropFirst().compactMap {
            $0.split(separator: ")").first
        }
        for target in targets where !target.contains("://") && !target.hasPrefix("#") {
            let path = "\(Self.root)\(folder)/\(target.prefix { $0 != "#" })"
            #expect(FileManager.default.fileExists(atPath: path), "\(document): \(target)")
        }
    }

    @Test("The README links to the durability page, the threat model and the developers' pages, which are complete.")
    func limits() throws {
        let readme = try text("README.md")
        let pages = ["architecture", "contributing", "durability", "threat-model"].map { "deploy/doc/\($0).md" }
        for page in pages {
            #expect(readme.contains("](\(page))"))
        }
        let durability = try text("deploy/doc/durability.md")
        for word in ["synchronous_standby_names", "`remote_apply`", "| `off` | siwad uses `on` |", "failover"] {
            #expect(durability.contains(word), "\(word)")
        }
        let threats = try text("deploy/doc/threat-model.md")
        for heading in [
            "An attacker on the network", "Another Apple developer", "Roles of the database", "Other users",
        ] {
            #expect(threats.contains("\n## \(heading)"), "\(heading)")
        }
    }
}
