import Testing

@testable import Terminal

@Suite("A table")
struct TableTests {
    private func accounts() -> Table {
        var table = Table([
            .init("SUB", cut: .middle, minimumWidth: 20),
            .init("STATE"),
            .init("APP", cut: .end, minimumWidth: 10),
            .init("SESSIONS", isRightAligned: true),
        ])
        table.append(["000768.6166f031167141e695698239959f591a.1521", "authorized", "com.example.app", "2"])
        table.append([
            Cell("001999.aaaabbbbccccddddeeeeffff00001111.0002"), Cell("revoked", color: .yellow),
            Cell("com.example.quite.a.long.application.identifier"), Cell(nil),
        ])
        return table
    }

    private typealias Cell = Table.Cell

    @Test("fits the columns of the terminal, ids cut in the middle and texts at the end.")
    func fits() {
        let lines = accounts().lines(style: OutputStyle(width: 80, usesColor: false))
        #expect(
            lines == [
                "SUB                           STATE       APP                           SESSIONS",
                "000768.6166f03…959f591a.1521  authorized  com.example.app                      2",
                "001999.aaaabbb…00001111.0002  revoked     com.example.quite.a.long.ap…         -",
            ]
        )
        #expect(lines.allSatisfy { VisibleText.width($0) <= 80 })
    }

    @Test("cuts nothing in a pipe and still aligns.")
    func pipe() {
        let lines = accounts().lines(style: .plain)
        #expect(lines[1].hasPrefix("000768.6166f031167141e695698239959f591a.1521  authorized  com.example.app "))
        #expect(lines[2].contains("com.example.quite.a.long.application.identifier"))
        #expect(Set(lines.map(VisibleText.width)).count == 1)
    }

    @Test("colours only where colour is shown, and pads by what is seen.")
    func color() {
        let lines = accounts().lines(style: OutputStyle(width: 120, usesColor: true))
        #expect(lines[2].contains("\u{1b}[33mrevoked\u{1b}[0m     com.example"))
        #expect(accounts().lines(style: .plain).allSatisfy { !$0.contains("\u{1b}") })
    }

    @Test("leaves no blanks at the end of a line.")
    func trailingBlanks() {
        var table = Table([.init("A"), .init("NAME")])
        table.append(["1", "x"])
        table.append(["1"])
        #expect(table.lines(style: .plain) == ["A  NAME", "1  x", "1  -"])
    }

    @Test("lets no control character of a value through.")
    func control() {
        var table = Table([.init("NAME"), .init("B")])
        table.append([Cell("a\u{1b}[2Jb\u{202e}c\nd"), "x"])
        #expect(table.lines(style: .plain)[1] == "a\\u{1b}[2Jb\\u{202e}c d  x")
    }

    @Test("keeps the least width of its columns on a terminal too narrow for all.")
    func narrow() {
        let lines = accounts().lines(style: OutputStyle(width: 40, usesColor: false))
        #expect(lines[1].hasPrefix("000768.616…591a.1521"))
        #expect(lines[2].contains("  com.examp…  "))
    }
}

@Suite("Visible text")
struct VisibleTextTests {
    @Test("measures wide characters as two columns, pictures among them.")
    func width() {
        #expect(VisibleText.width("abc") == 3)
        #expect(VisibleText.width("名前") == 4)
        #expect(VisibleText.width("é") == 1)
        for wide in "한、Ａ𠀀😀🚀🛫🟢🟫🥇🩷✅❌☔♈⚡➕⏰⭐👍🏽👩‍💻" { #expect(VisibleText.width(String(wide)) == 2, "\(wide)") }
        for narrow in "✓✗⚠☀…–█“яﾊ𝒳" { #expect(VisibleText.width(String(narrow)) == 1, "\(narrow)") }
    }

    @Test("is cut to the very limit.", arguments: 0...12)
    func cut(limit: Int) {
        #expect(VisibleText.width(VisibleText.cutAtEnd("0123456789", to: limit)) == min(limit, 10))
        #expect(VisibleText.width(VisibleText.cutInMiddle("0123456789", to: limit)) == min(limit, 10))
    }

    @Test("keeps both ends when it is cut in the middle.")
    func middle() {
        #expect(VisibleText.cutInMiddle("0123456789", to: 7) == "012…789")
    }
}
