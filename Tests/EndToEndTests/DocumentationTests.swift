import Foundation
import Testing

@Suite("The documents")
struct DocumentationTests {
    private static let root = #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined()
    private static let pages = [
        "application", "architecture", "backup", "benchmarks", "changelog", "changes", "configuration", "contributing",
        "durability", "install", "json", "metrics", "operations", "promises", "proxy", "releasing", "sign-in",
        "simulation", "sizing", "threats", "upgrade", "webhooks",
    ].map { "deploy/doc/\($0).md" }

    private func text(_ document: String) throws -> String {
        try String(contentsOfFile: "\(Self.root)/\(document)", encoding: .utf8)
    }

    /// The anchors of a document's headings, as GitHub makes them.
    private func anchors(_ text: String) -> Set<String> {
        let headings = text.split(separator: "\n").filter { $0.hasPrefix("#") && $0.contains("# ") }
        return Set(
            headings.map { heading in
                let title = heading.drop { $0 == "#" }.dropFirst().lowercased()
                return String(title.compactMap { $0 == " " ? "-" : $0.isLetter || $0.isNumber || $0 == "-" ? $0 : nil })
            }
        )
    }

    @Test("Every link from a document to a file or to a section has a target.", arguments: ["README.md"] + pages)
    func links(document: String) throws {
        let folder = document.split(separator: "/").dropLast().map { "/\($0)" }.joined()
        let targets = try text(document).split(separator: "](").dropFirst().compactMap {
            $0.split(separator: ")").first
        }
        for target in targets where !target.contains("://") {
            let file = target.prefix { $0 != "#" }
            let path = file.isEmpty ? "/\(document)" : "\(folder)/\(file)"
            #expect(FileManager.default.fileExists(atPath: Self.root + path), "\(document): \(target)")
            guard file.isEmpty || file.hasSuffix(".md"), target.count > file.count else { continue }
            let isFound = try anchors(text(path)).contains(String(target.dropFirst(file.count + 1)))
            #expect(isFound, "\(document): \(target)")
        }
    }

    @Test("The README has at most 300 lines, and links to every page in deploy/doc.")
    func readme() throws {
        let readme = try text("README.md")
        #expect(readme.split(separator: "\n", omittingEmptySubsequences: false).count <= 301)
        let found = try FileManager.default.contentsOfDirectory(atPath: "\(Self.root)/deploy/doc")
        #expect(found.filter { $0.hasSuffix(".md") }.map { "deploy/doc/\($0)" }.sorted() == Self.pages)
        for page in Self.pages {
            #expect(readme.contains("](\(page)"), "\(page)")
        }
    }

    @Test("The app's code on the page of sign-ins sends what the examples of backends read.")
    func members() throws {
        let members = ["identityToken", "authorizationCode", "user"]
        let page = try text("deploy/doc/sign-in.md")
        let code = try #require(page.split(separator: "```swift\n").dropFirst().first)
        let app = code.split(separator: "```").first ?? ""
        for member in members { #expect(app.contains(" \(member): "), "\(member)") }
        for part in ["given_name", "family_name"] { #expect(app.contains("\"\(part)\": "), "\(part)") }
        let reading = [
            ("python/sign_in.py", /\bapp(?:\[|\.get\()"(\w+)"/), ("node/sign_in.js", /: app\.(\w+)/),
            ("go/main.go", /: app\.(\w+)/), ("php/sign_in.php", /\$app\['(\w+)'\]/),
        ]
        for (file, member) in reading {
            let read = try text("deploy/examples/sign-in/\(file)").matches(of: member).map { $0.1.lowercased() }
            #expect(Set(read) == Set(members.map { $0.lowercased() }), "\(file)")
        }
    }

    @Test("The changelog begins with the version of this siwad.")
    func changelog() async throws {
        let version = try await siwad(["--version"]).lines.first?.split(separator: " ").last ?? ""
        let first = try text("deploy/doc/changelog.md").split(separator: "\n").first { $0.hasPrefix("## ") } ?? ""
        #expect(first.hasPrefix("## \(version)"), "\(first)")
    }

    @Test("The page of the metrics has every metric of a daemon.")
    func metrics() async throws {
        let page = try text("deploy/doc/metrics.md")
        try await DaemonFixture.withDaemon { _, _, addresses in
            let lines = try await Web.get(addresses.operations + "/metrics").body.split(separator: "\n")
            let names = lines.filter { $0.hasPrefix("# TYPE ") }.map { $0.split(separator: " ")[2] }
            #expect(names.count > 30)
            for name in names { #expect(page.contains("\n| `\(name)` | "), "\(name)") }
        }
    }

    @Test("Each message of the log that a runbook quotes is one of siwad's.")
    func messages() throws {
        var code: [Substring] = []
        let files = FileManager.default.enumerator(
            at: URL(filePath: "\(Self.root)/Sources"),
            includingPropertiesForKeys: nil
        )
        for case let file as URL in files ?? .init() where file.pathExtension == "swift" {
            code += try String(contentsOf: file, encoding: .utf8).split(separator: "\n")
        }
        code.removeAll { $0.drop { $0 == " " }.hasPrefix("//") }
        let page = try text("deploy/doc/operations.md")
        let alerts = try #require(page.split(separator: "\n## Alerts\n").last?.split(separator: "\n## ").first)
        // Several words alone, and no command.
        let messages = alerts.matches(of: /`([A-Za-z']+(?: [a-z][a-z'-]*)+)`/).map { String($0.1) }
            .filter { !$0.hasPrefix("siwad ") }
        #expect(messages.contains("maintenance gave way"))
        for message in messages { #expect(code.contains { $0.contains(message) }, "\(message)") }
    }

    @Test("The durability page and the threat model are complete.")
    func limits() throws {
        let durability = try text("deploy/doc/durability.md")
        for word in ["synchronous_standby_names", "`remote_apply`", "| `off` | siwad uses `on` |", "failover"] {
            #expect(durability.contains(word), "\(word)")
        }
        let threats = try text("deploy/doc/threats.md")
        for heading in [
            "An attacker on the network", "Another Apple developer", "Roles of the database", "Other users",
        ] {
            #expect(threats.contains("\n## \(heading)"), "\(heading)")
        }
    }
}
