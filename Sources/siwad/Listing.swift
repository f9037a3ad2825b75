import Terminal

/// A list that a command prints: as a table, or as JSON lines.
struct Listing<Row> {
    /// The rows, at most as many as were asked for.
    let rows: [Row]
    /// What one row and several rows are called.
    let nouns: (one: String, many: String)
    /// Which ones a limit leaves, in the order in which they are printed: the first, or the latest.
    var part = "first"
    /// The table's columns.
    let columns: [Table.Column]
    /// A row of the table.
    let cells: (Row) -> [Table.Cell]
    /// A row as JSON.
    let json: (Row) -> JSONText

    /// Prints it.
    /// - Throws: `CommandFailure` with `.nothingMatched` if there is nothing.
    func print(_ options: ListingOptions, to console: Console) throws {
        guard !rows.isEmpty else { throw CommandFailure(.nothingMatched, "no \(nouns.many) match") }
        if options.json {
            console.print(lines: rows.map { json($0).line })
            return
        }
        console.print(lines: table.lines(style: console.style))
        if rows.count == options.limit, console.style.width != nil {
            console.note(
                "the \(part) \(options.limit) \(options.limit == 1 ? nouns.one : nouns.many); --limit shows more"
            )
        }
    }

    /// The rows as a table.
    var table: Table {
        var table = Table(columns)
        for row in rows { table.append(cells(row)) }
        return table
    }
}
