import Testing

@testable import Terminal

@Suite("A table")
struct TableTests {
    private func accounts() -> Table {
        var table = Table([
            .init("SUB", .cutEnd(minimum: 20)),
            .init("STATE"),
            .init("APP", .cutEnd(minimum: 10)),
            .init("SESSIONS", .right),
        ])
        table.append(["000768.6166f031167141e695698239959f591a.1521", "authorized", "com.example.app", "2"])
        table.append([
            Cell("001999.aaaabbbbccccddddeeeeffff00001111.0002"), Cell("revoked", color: .yellow),
            Cell("com.example.quite.a.long.application.identifier"), Cell(nil),
        ])
        return table
    }

    private typealias Cell = Table.Cell

    @Test("A row fits the terminal: ids and texts are cut at their end, so that what is left of an id is a prefix.")
    func fits() {
        let lines = accounts().lines(style: OutputStyle(width: 80, usesColor: false))
        #expect(
            lines == [
                "SUB                           STATE       APP                           SESSIONS",
                "000768.6166f031167141e69569…  authorized  com.example.app                      2",
                "001999.aaaabbbbccccddddeeee…  revoked     com.example.quite.a.long.ap…         -",
            ]
        )
        #expect(lines.allSatisfy { VisibleText.width($0) <= 80 })
    }

    @Test("In a pipe the columns are aligned and nothing is cut.")
    func pipe() {
        let lines = accounts().lines(style: .plain)
        #expect(lines[1].hasPrefix("000768.6166f031167141e695698239959f591a.1521  authorized  com.example.app "))
        #expect(lines[2].contains("com.example.quite.a.long.application.identifier"))
        #expect(Set(lines.map(VisibleText.width)).count == 1)
    }

    @Test("Colour needs a style with colour, and padding ignores its escape sequences.")
    func color() {
        let lines = accounts().lines(style: OutputStyle(width: 120, usesColor: true))
        #expect(lines[2].contains("\u{1b}[33mrevoked\u{1b}[0m     com.example"))
        #expect(accounts().lines(style: .plain).allSatisfy { !$0.contains("\u{1b}") })
    }

    @Test("A line has no spaces at its end.")
    func trailingBlanks() {
        var table = Table([.init("A"), .init("NAME")])
        table.append(["1", "x"])
        table.append(["1"])
        #expect(table.lines(style: .plain) == ["A  NAME", "1  x", "1  -"])
    }

    @Test("Control characters of a value are escaped.")
    func control() {
        var table = Table([.init("NAME"), .init("B")])
        table.append([Cell("a\u{1b}[2Jb\u{202e}c\nd"), "x"])
        #expect(table.lines(style: .plain)[1] == "a\\u{1b}[2Jb\\u{202e}c d  x")
    }

    @Test("On a narrow terminal the columns keep their minimum width.")
    func narrow() {
        let lines = accounts().lines(style: OutputStyle(width: 54, usesColor: false))
        #expect(lines[1].hasPrefix("000768.6166f0311671…  "))
        #expect(lines[2].contains("  com.examp…  "))
        #expect(lines.allSatisfy { VisibleText.width($0) <= 54 })
    }

    @Test("On a terminal that is too narrow for the columns, each value has its own line.")
    func expanded() {
        let lines = accounts().lines(style: OutputStyle(width: 40, usesColor: false))
        #expect(
            lines == [
                "SUB       000768.6166f031167141e6956982…", "STATE     authorized", "APP       com.example.app",
                "SESSIONS  2", "", "SUB       001999.aaaabbbbccccddddeeeeff…", "STATE     revoked",
                "APP       com.example.quite.a.long.appl…", "SESSIONS  -",
            ]
        )
    }

    @Test("The width of a table is the width at which nothing is cut.")
    func width() {
        let table = accounts()
        #expect(table.lines(style: OutputStyle(width: table.width, usesColor: false)) == table.lines(style: .plain))
        #expect(table.lines(style: OutputStyle(width: table.width - 1, usesColor: false)) != table.lines(style: .plain))
    }
}

@Suite("Visible text")
struct VisibleTextTests {
    @Test("Wide characters and emoji have two columns.")
    func width() {
        #expect(VisibleText.width("abc") == 3)
        #expect(VisibleText.width("名前") == 4)
        #expect(VisibleText.width("é") == 1)
        for wide in "한、Ａ𠀀😀🚀🛫🟢🟫🥇🩷✅❌☔♈⚡➕⏰⭐👍🏽👩‍💻" { #expect(VisibleText.width(String(wide)) == 2, "\(wide)") }
        for narrow in "✓✗⚠☀…–█“яﾊ𝒳" { #expect(VisibleText.width(String(narrow)) == 1, "\(narrow)") }
    }

    @Test("A cut text has exactly the width of the limit.", arguments: 0...12)
    func cut(limit: Int) {
        #expect(VisibleText.width(VisibleText.cutAtEnd("0123456789", to: limit)) == min(limit, 10))
    }
}
