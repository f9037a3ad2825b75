/// Rows in aligned columns. On a terminal, values are cut so that each row fits on one line. If the terminal is too narrow
/// for that, each value has its own line.
package struct Table: Sendable {
    /// How a column aligns its values, and which part it removes from those wider than the column. `minimum` is the
    /// width that the column keeps on a narrow terminal.
    package enum Layout: Sendable {
        case left
        /// For numbers.
        case right
        /// For sentences, and for ids: an operator may abbreviate an id to its beginning.
        case cutEnd(minimum: Int)
        /// For names in reverse domain notation, which differ at their end.
        case cutStart(minimum: Int)

        fileprivate var minimum: Int? {
            switch self {
            case .left, .right: nil
            case .cutEnd(let minimum), .cutStart(let minimum): minimum
            }
        }

        fileprivate func cut(_ text: String, to width: Int) -> String {
            switch self {
            case .left, .right: text
            case .cutEnd: VisibleText.cutAtEnd(text, to: width)
            case .cutStart: VisibleText.cutAtStart(text, to: width)
            }
        }
    }

    package struct Column: Sendable {
        let title: String
        let layout: Layout

        package init(_ title: String, _ layout: Layout = .left) {
            self.title = title
            self.layout = layout
        }
    }

    package struct Cell: Sendable, ExpressibleByStringLiteral, ExpressibleByStringInterpolation {
        let text: String
        let color: Color?

        /// Escapes control characters of the text. `nil` and empty texts are shown as `-`.
        package init(_ text: String?, color: Color? = nil) {
            let visible = VisibleText.visible(text ?? "")
            self.text = visible.isEmpty ? "-" : visible
            self.color = color
        }

        package init(stringLiteral value: String) {
            self.init(value)
        }
    }

    /// The space between two columns.
    package static let gap = "  "

    private let columns: [Column]
    private var rows: [[Cell]] = []

    package init(_ columns: [Column]) {
        self.columns = columns
    }

    package var isEmpty: Bool { rows.isEmpty }

    /// The width at which nothing is cut.
    package var width: Int { total(widths(fitting: nil)) }

    /// Adds a row. Missing cells are shown as `-`.
    package mutating func append(_ cells: [Cell]) {
        let missing = max(0, columns.count - cells.count)
        rows.append(Array(cells.prefix(columns.count)) + Array(repeating: Cell(nil), count: missing))
    }

    package func lines(style: OutputStyle, indentation: Int = 0) -> [String] {
        let margin = String(repeating: " ", count: indentation)
        let widths = widths(fitting: style.width.map { $0 - indentation })
        if let width = style.width, total(widths) > width - indentation {
            return expanded(to: width - indentation, style: style).map { $0.isEmpty ? "" : margin + $0 }
        }
        let header = line(columns.map { Cell($0.title, color: .bold) }, widths: widths, style: style)
        return ([header] + rows.map { line($0, widths: widths, style: style) }).map { margin + $0 }
    }

    private func line(_ cells: [Cell], widths: [Int], style: OutputStyle) -> String {
        var line = ""
        for (index, cell) in cells.enumerated() {
            let layout = columns[index].layout
            let text = layout.cut(cell.text, to: widths[index])
            let padding = String(repeating: " ", count: max(0, widths[index] - VisibleText.width(text)))
            let shown = cell.color.map { style.painted(text, $0) } ?? text
            let isLast = index == cells.count - 1
            if case .right = layout { line += padding + shown } else { line += shown + (isLast ? "" : padding) }
            if !isLast { line += Self.gap }
        }
        return line
    }

    /// A line for each value, and an empty line between rows.
    private func expanded(to width: Int, style: OutputStyle) -> [String] {
        let nameWidth = columns.map { VisibleText.width($0.title) }.max() ?? 0
        let blocks = rows.map { row in
            zip(columns, row).map { column, cell in
                let padding = String(repeating: " ", count: nameWidth - VisibleText.width(column.title))
                let text = column.layout.cut(cell.text, to: width - nameWidth - Self.gap.count)
                return style.painted(column.title, .bold) + padding + Self.gap
                    + (cell.color.map { style.painted(text, $0) } ?? text)
            }
        }
        return Array(blocks.joined(separator: [""]))
    }

    private func total(_ widths: [Int]) -> Int { widths.reduce(Self.gap.count * max(0, columns.count - 1), +) }

    /// The natural widths. Above the limit, the widest column that may be cut is reduced until the row fits.
    private func widths(fitting limit: Int?) -> [Int] {
        var widths = columns.indices.map { index in
            rows.reduce(VisibleText.width(columns[index].title)) { max($0, VisibleText.width($1[index].text)) }
        }
        guard let limit else { return widths }
        var excess = total(widths) - limit
        while excess > 0 {
            let candidates = columns.indices.filter { widths[$0] > columns[$0].layout.minimum ?? .max }
            guard let widest = candidates.max(by: { widths[$0] < widths[$1] }) else { break }
            widths[widest] -= 1
            excess -= 1
        }
        return widths
    }
}
