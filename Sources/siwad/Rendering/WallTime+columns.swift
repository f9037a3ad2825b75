import AppleTokens
import Terminal

extension WallTime {
    /// For a column: `2026-01-02 03:04:05`, in UTC.
    var column: String {
        String(iso8601.prefix(19).map { $0 == "T" ? " " : $0 })
    }

    /// For a narrow column: `2026-01-02 03:04`, in UTC.
    var shortColumn: String { String(column.prefix(16)) }

    /// For JSON: RFC 3339.
    var json: JSONText { .string(iso8601) }
}

extension WallTime? {
    /// For JSON: RFC 3339, or null.
    var json: JSONText { self.map(\.json) ?? .null }
}
