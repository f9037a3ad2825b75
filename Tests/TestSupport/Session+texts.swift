package import Postgres

extension Session {
    /// The first column of the rows, a text; `NULL` for NULL.
    package func texts(_ sql: String) throws(PostgresError) -> [String] {
        try execute(once: sql).decode { (text: String?) in text ?? "NULL" }
    }
}
