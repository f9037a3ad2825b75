import Basics
import Testing

@testable import Settings

@Suite("The documentation of the settings")
struct SettingDocumentationTests {
    private func text(_ path: String) throws -> String {
        let root = #filePath.split(separator: "/").dropLast(3).joined(separator: "/")
        return String(decoding: try readFile(atPath: "/\(root)/\(path)"), as: UTF8.self)
    }

    @Test("The page of the settings is what siwad config --markdown prints, with every setting and its default.")
    func page() throws {
        let page = try text("deploy/doc/configuration.md")
        #expect(
            page == ConfigurationReference.page + "\n",
            "run siwad config --markdown > deploy/doc/configuration.md"
        )
        for key in SettingKey.allCases {
            let row = try #require(page.split(separator: "\n").first { $0.hasPrefix("| `\(key.environmentName)` |") })
            #expect(key.defaultText == nil || row.contains("| `\(key.defaultText ?? "")` |"))
        }
    }

    @Test("The example file shows known settings, and their defaults in comments.")
    func exampleFile() throws {
        let settings = try text("deploy/siwad.yaml").split(separator: "\n").compactMap { line in
            line.wholeMatch(of: /#?(?<key>[a-z_]+): (?<value>\S+)/)?.output
        }
        #expect(settings.count > 10)
        for setting in settings {
            let key = try #require(SettingKey(rawValue: String(setting.key)), "\(setting.key)")
            #expect(key.defaultText == nil || key.defaultText == String(setting.value), "\(setting.key)")
        }
    }
}
