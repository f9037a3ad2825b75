import AppleTokens
import Basics
import Terminal

/// A field of a row: a member of its JSON object, a column of its table, or both.
///
/// One array of columns describes a kind of row. It is in the order of the JSON object; a table selects columns by title.
struct Column<Row>: Sendable {
    /// Of the JSON member; nil: only tables have the field.
    let name: String?
    /// Of the table's column; nil: only JSON has the field.
    let title: String?
    let layout: Table.Layout
    let cell: @Sendable (Row) -> Table.Cell
    let json: @Sendable (Row) -> JSONText

    /// A field whose cell shows the text of its value, unless `cell` returns another.
    init<Value: FieldValue>(
        _ name: String,
        _ value: @escaping @Sendable (Row) -> Value,
        _ title: String? = nil,
        _ layout: Table.Layout = .left,
        cell: (@Sendable (Row) -> Table.Cell)? = nil
    ) {
        self.name = name
        self.title = title
        self.layout = layout
        self.cell = cell ?? { Table.Cell(value($0).text) }
        self.json = { value($0).json }
    }

    init(title: String, _ layout: Table.Layout = .left, cell: @escaping @Sendable (Row) -> Table.Cell) {
        name = nil
        self.title = title
        self.layout = layout
        self.cell = cell
        json = { _ in .null }
    }
}

extension Array {
    func members<Row>(of row: Row) -> [JSONText.Member] where Element == Column<Row> {
        compactMap { column in column.name.map { .init($0, column.json(row)) } }
    }

    func object<Row>(of row: Row) -> JSONText where Element == Column<Row> { .object(members(of: row)) }

    func objects<Row>(of rows: [Row]) -> [JSONText] where Element == Column<Row> {
        rows.map { object(of: $0) }
    }

    /// A table of the columns with these titles, in this order; of all columns that have a title if `titles` is nil.
    func table<Row>(of rows: [Row], titles: [String]? = nil) -> Table where Element == Column<Row> {
        let columns = titles.map { $0.map(column(titled:)) } ?? filter { $0.title != nil }
        var table = Table(columns.map { Table.Column($0.title ?? "", $0.layout) })
        for row in rows { table.append(columns.map { $0.cell(row) }) }
        return table
    }

    private func column<Row>(titled title: String) -> Element where Element == Column<Row> {
        guard let column = first(where: { $0.title == title }) else {
            preconditionFailure("no column has the title \(title)")
        }
        return column
    }
}

protocol FieldValue: SendableMetatype {
    var json: JSONText { get }
    /// The text in a table; nil is shown as `-`.
    var text: String? { get }
}

extension String: FieldValue {
    var json: JSONText { .string(self) }
    var text: String? { self }
}

extension FieldValue where Self: BinaryInteger {
    var json: JSONText { .integer(Int64(self)) }
    var text: String? { String(self) }
}

extension Int64: FieldValue {}
extension Int: FieldValue {}

extension Bool: FieldValue {
    var json: JSONText { .bool(self) }
    var text: String? { self ? "yes" : "no" }
}

extension WallTime: FieldValue {
    /// RFC 3339.
    var json: JSONText { .string(iso8601) }
    var text: String? { minuteText }

    /// `2026-01-02 03:04:05`, in UTC. The year may have more digits, or a minus sign.
    var secondText: String { String(iso8601.prefix { $0 != "." }.map { $0 == "T" ? " " : $0 }) }
    /// `2026-01-02 03:04`, in UTC.
    var minuteText: String {
        let text = secondText
        return String(text[..<(text.lastIndex(of: ":") ?? text.endIndex)])
    }
}

extension Optional: FieldValue where Wrapped: FieldValue {
    var json: JSONText { map(\.json) ?? .null }
    var text: String? { flatMap(\.text) }
}

extension [JSONText]: FieldValue {
    var json: JSONText { .array(self) }
    var text: String? { nil }
}
