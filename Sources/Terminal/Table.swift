/// Rows in aligned columns. On a terminal, values are cut so that each row fits on one line.
package struct Table: Sendable {
    package struct Column: Sendable {
        /// The part that is removed from a value that is wider than its column.
        package enum Cut: Sendable {
            case never
            case end
            /// For ids, which differ at both ends.
            case middle
            /// For names in reverse domain notation, which differ at their end.
            case start
        }

        let title: String
        let isRightAligned: Bool
        let cut: Cut
        let minimumWidth: Int

        /// - Parameter minimumWidth: the width on a narrow terminal.
        package init(_ title: String, isRightAligned: Bool = false, cut: Cut = .never, minimumWidth: Int = 8) {
            self.title = title
            self.isRightAligned = isRightAligned
            self.cut = cut
            self.minimumWidth = minimumWidth
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

    /// Spaces between two columns.
    private static let gap = 2

    private let columns: [Column]
    private var rows: [[Cell]] = []

    package init(_ columns: [Column]) {
        self.columns = columns
    }

    package var isEmpty: Bool { rows.isEmpty }

    /// Adds a row. Missing cells are shown as `-`.
    package mutating func append(_ cells: [Cell]) {
        let missing = max(0, columns.count - cells.count)
        rows.append(Array(cells.prefix(columns.count)) + Array(repeating: Cell(nil), count: missing))
    }

    /// Returns the header and the rows, one line each.
    ///
    /// - Parameter indentation: spaces before each line.
    package func lines(style: OutputStyle, indentation: Int = 0) -> [String] {
        let widths = widths(fitting: style.width.map { $0 - indentation })
        let margin = String(repeating: " ", count: indentation)
        let header = line(columns.map { Cell($0.title, color: .bold) }, widths: widths, style: style)
        return ([header] + rows.map { line($0, widths: widths, style: style) }).map { margin + $0 }
    }

    private func line(_ cells: [Cell], widths: [Int], style: OutputStyle) -> String {
        var line = ""
        for (index, cell) in cells.enumerated() {
            let column = columns[index]
            let text = cut(cell.text, to: widths[index], column.cut)
            let padding = String(repeating: " ", count: max(0, widths[index] - VisibleText.width(text)))
            let shown = cell.color.map { style.painted(text, $0) } ?? text
            let isLast = index == cells.count - 1
            line += column.isRightAligned ? padding + shown : shown + (isLast ? "" : padding)
            if !isLast { line += String(repeating: " ", count: Self.gap) }
        }
        return line
    }

    private func cut(_ text: String, to width: Int, _ cut: Column.Cut) -> String {
        switch cut {
        case .never: text
        case .end: VisibleText.cutAtEnd(text, to: width)
        case .middle: VisibleText.cutInMiddle(text, to: width)
        case .start: VisibleText.cutAtStart(text, to: width)
        }
    }

    /// Returns the natural widths. Above the limit, it reduces the widest column that may be cut until the row fits.
    private func widths(fitting limit: Int?) -> [Int] {
        var widths = columns.indices.map { index in
            rows.reduce(VisibleText.width(columns[index].title)) { max($0, VisibleText.width($1[index].text)) }
        }
        guard let limit else { return widths }
        let gaps = Self.gap * max(0, columns.count - 1)
        var excess = widths.reduce(gaps, +) - limit
        while excess > 0 {
            let candidates = columns.indices.filter { index in
                switch columns[index].cut {
                case .never: false
                case .end, .middle, .start: widths[index] > columns[index].minimumWidth
                }
            }
            guard let widest = candidates.max(by: { widths[$0] < widths[$1] }) else { break }
            widths[widest] -= 1
            excess -= 1
        }
        return widths
    }
}
