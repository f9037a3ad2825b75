import Terminal

/// What a command prints: lines for a reader, or a JSON object per line for a program.
protocol CommandOutput {
    func lines(style: OutputStyle) -> [String]
    var json: [JSONText] { get }
}

extension Console {
    /// - Parameter isWide: true to cut nothing to the width of the terminal.
    func print(_ output: some CommandOutput, asJSON: Bool, isWide: Bool = false) {
        print(lines: asJSON ? output.json.map(\.line) : output.lines(style: isWide ? style.uncut : style))
    }

    /// Prints pages with an empty line between two of them.
    func print(pages: [some CommandOutput], asJSON: Bool) {
        for (index, page) in pages.enumerated() {
            if index > 0, !asJSON { print() }
            print(page, asJSON: asJSON)
        }
    }

    /// Prints the ids of what a command ended or removed, and a note that says so.
    ///
    /// - Parameter wouldHappen: the note of a dry run.
    func print(_ ids: [String], as member: String, asJSON: Bool, _ participle: String, wouldHappen: String?) {
        print(lines: ids.map { asJSON ? JSONText.object([.init(member, .string($0))]).line : VisibleText.visible($0) })
        if let wouldHappen {
            note("dry run: \(wouldHappen), nothing was changed")
        } else if !asJSON {
            note("\(ids.count) \(participle)")
        }
    }
}

struct Listing<Row: Sendable>: CommandOutput, Sendable {
    let rows: [Row]
    /// The word for one row.
    let noun: String
    /// The part of all rows that a limit leaves: the first, or the latest.
    var part = "first"
    let columns: [Column<Row>]
    /// The titles of the columns of ``table``; nil: all.
    var titles: [String]?
    /// The titles of the columns that a wider table has first; the others follow.
    var furtherTitles: [String] = []

    var table: Table { columns.table(of: rows, titles: titles) }

    /// The columns of ``table``, and all further columns that fit.
    ///
    /// - Parameter width: nil for all columns.
    private func table(fitting width: Int?) -> Table {
        guard var titles else { return table }
        var room = width.map { $0 - table.width } ?? .max
        for title in furtherTitles + columns.compactMap(\.title) where !titles.contains(title) {
            let needed = columns.table(of: rows, titles: [title]).width + Table.gap.count
            guard needed <= room else { continue }
            titles.append(title)
            room -= needed
        }
        return columns.table(of: rows, titles: titles)
    }

    var json: [JSONText] { columns.objects(of: rows) }

    /// On a terminal, with the columns for which it is wide enough.
    func lines(style: OutputStyle) -> [String] {
        (style.width.map { table(fitting: $0) } ?? table).lines(style: style)
    }

    /// Prints the rows. If the limit may have left out some, a note says so where standard error is a terminal, whatever reads
    /// the rows.
    ///
    /// - Throws: `CommandFailure` with `.nothingMatched` if there are no rows.
    func print(_ options: ListingOptions, to console: Console) throws {
        guard !rows.isEmpty else { throw CommandFailure(.nothingMatched, "no \(plural(noun)) match") }
        if options.wide, !options.json {
            console.print(lines: table(fitting: nil).lines(style: console.style.uncut))
        } else {
            console.print(self, asJSON: options.json)
        }
        if rows.count == options.limit, console.errorStyle.width != nil {
            console.note("the \(part) \(counted(options.limit, noun)); --limit shows more")
        }
    }
}

extension OutputStyle {
    func check(_ mark: String, _ name: String, nameWidth: Int, _ text: String) -> [String] {
        hanging("\(mark) \(name.padding(to: nameWidth))  ", indentation: nameWidth + 4, text)
    }

    /// A text after `start`, wrapped to the width: further lines begin with spaces.
    ///
    /// - Parameter indentation: the visible width of `start`.
    func hanging(_ start: String, indentation: Int, _ text: String) -> [String] {
        VisibleText.wrapped(text, to: width.map { $0 - indentation }).enumerated().map { index, line in
            (index == 0 ? start : String(repeating: " ", count: indentation)) + line
        }
    }

    /// Lines with a name and a text each, indented by two spaces.
    func facts(_ facts: [(name: String, text: String)], nameWidth: Int) -> [String] {
        facts.flatMap { hanging("  " + $0.name.padding(to: nameWidth), indentation: nameWidth + 2, $0.text) }
    }
}

extension String {
    func padding(to width: Int) -> String {
        self + String(repeating: " ", count: max(0, width - VisibleText.width(self)))
    }
}

/// A progress bar on standard error. Draws nothing where standard error cannot redraw a line.
struct ProgressLine: Sendable {
    private let title: String
    private let delay: Duration
    private let console: Console
    private let start = ContinuousClock.now
    private var bar: ProgressBar?

    /// A bar that appears after `delay`: work that ends earlier needs none.
    init(title: String, after delay: Duration = .milliseconds(500), on console: Console) {
        self.title = title
        self.delay = delay
        self.console = console
    }

    mutating func advance(to done: Int, of total: Int) {
        let elapsed = ContinuousClock.now - start
        guard let width = console.barWidth, elapsed >= delay else { return }
        var bar = bar ?? ProgressBar(title: title, total: total)
        if let line = bar.advanced(to: done, after: elapsed, width: width) { console.redraw(line) }
        self.bar = bar
    }

    /// Ends the bar's line, so that further output starts on its own line.
    mutating func end() {
        if bar != nil { console.note("") }
        bar = nil
    }
}
