import FoundationEssentials
import Testing

@Suite("The alerts")
struct AlertTests {
    private static let root = #filePath.split(separator: "/").dropLast(3).map { "/\($0)" }.joined()

    /// What the rules and the page of operations both say of an alert.
    private struct Alert: Equatable {
        let runbook: String
        /// nil: the page describes it in words.
        var expression: String?
        /// `5m`; empty: at the first evaluation.
        let duration: String
        let wakesPerson: Bool
    }

    private func text(_ path: String) throws -> String {
        try String(contentsOfFile: "\(Self.root)/\(path)", encoding: .utf8)
    }

    /// The rules, in their order.
    private func rules() throws -> [Alert] {
        try text("deploy/prometheus/alerts.yaml").split(separator: "- alert: ").dropFirst().map { rule in
            func value(_ key: String) -> String {
                let line = rule.split(separator: "\n").first { $0.contains(" \(key): ") }
                return line.map { String($0.drop { $0 != ":" }.dropFirst(2)) } ?? ""
            }
            let runbook = value("runbook").split(separator: "#")
            try #require(runbook.count == 2 && runbook[0] == "/usr/share/doc/siwad/operations.md", "\(rule)")
            return Alert(
                runbook: String(runbook[1]),
                expression: value("expr"),
                duration: value("for"),
                wakesPerson: value("severity") == "page"
            )
        }
    }

    /// The rows of the table, in their order. The first eight wake a person.
    private func rows(of page: String) throws -> [Alert] {
        let section = try #require(page.split(separator: "\n## Alerts\n").last?.split(separator: "\n### ").first)
        let rows = section.split(separator: "\n").filter { $0.hasPrefix("| [") }
        return rows.enumerated().map { index, row in
            let cells = row.split(separator: " | ")
            let quoted = cells[1].split(separator: "`", omittingEmptySubsequences: false)
            let expressions = quoted.indices.filter { $0 % 2 == 1 }.map { quoted[$0] }
            let minutes = cells[1].firstMatch(of: /for ([0-9]+) minutes?/)?.1
            return Alert(
                runbook: String(cells[0].split(separator: "#").last?.dropLast() ?? ""),
                expression: expressions.first == "/readyz" ? nil : expressions.joined(separator: " or "),
                duration: minutes.map { "\($0)m" } ?? "",
                wakesPerson: index < 8
            )
        }
    }

    @Test("The rules for Prometheus are the ones on the page of operations, and link to an entry of its runbook.")
    func correspondence() throws {
        let page = try text("deploy/doc/operations.md")
        var rules = try rules()
        let rows = try rows(of: page)
        #expect(page.contains("The first eight mean that notifications are at risk"))
        let inWords = try #require(rows.firstIndex { $0.expression == nil })
        rules[inWords].expression = nil
        #expect(rules == rows)
        for rule in rules {
            let headings = page.split(separator: "\n").filter { $0.hasPrefix("### ") }
            #expect(
                headings.contains { $0.dropFirst(4).lowercased().replacing(" ", with: "-") == rule.runbook },
                "\(rule.runbook)"
            )
        }
    }
}
