import Postgres

/// A WHERE clause of the conditions that are set, so that PostgreSQL plans each statement for its actual conditions.
struct Conditions {
    private var conditions: [String] = []
    private(set) var binds = Binds()

    mutating func add(_ condition: String) {
        conditions.append(condition)
    }

    /// Adds a condition with `?` for its value, unless that is nil.
    mutating func add<Value: PostgresValue>(_ condition: String, _ value: Value?) {
        guard let value else { return }
        conditions.append(condition.replacing("?", with: bind(value)))
    }

    mutating func add<Element: PostgresValue>(_ column: String, anyOf values: [Element]) {
        conditions.append("\(column) = ANY (\(bind(array: values)))")
    }

    /// Adds a condition on the type of an event. Either spelling of a deletion matches both.
    mutating func add(eventType: String?) {
        guard let eventType else { return }
        let deletion = ["account-delete", "account-deleted"]
        add("event_type", anyOf: deletion.contains(eventType) ? deletion : [eventType])
    }

    /// Appends a value and returns the SQL of its parameter.
    mutating func bind<Value: PostgresValue>(_ value: Value) -> String {
        binds.append(value)
        return "$\(binds.count)"
    }

    /// As ``bind(_:)``, for an array.
    mutating func bind<Element: PostgresValue>(array values: [Element]) -> String {
        binds.append(array: values)
        return "$\(binds.count)"
    }

    var sql: String { conditions.isEmpty ? "true" : conditions.joined(separator: " AND ") }
}
