import AccountStore
import AppleTokens
import JOSE
import Postgres

extension ReceivedDeadLetter {
    /// What becomes of a notification whose data PostgreSQL refuses.
    init(rejected received: ReceivedNotification, by error: PostgresError) {
        let token = received.notification.token
        self.init(
            .storeRejected(received.notification, detail: "PostgreSQL refused it (\(error.refusal))."),
            tokenDigest: SHA256.digest(token.span),
            receivedAt: received.receivedAt
        )
    }
}

extension PostgresError {
    /// What refused the data, by the names of objects: `SQLSTATE 23514, constraint no_poison of siwa.accounts`. An error
    /// that a trigger raises names none, unless its author has it do so.
    fileprivate var refusal: String {
        var parts = ["SQLSTATE \(sqlState?.rawValue ?? "unknown")"]
        if let constraintName { parts.append("constraint \(constraintName)") }
        if let columnName { parts.append("column \(columnName)") }
        guard let tableName else { return parts.joined(separator: ", ") }
        let table = schemaName.map { "\($0).\(tableName)" } ?? tableName
        let isPart = constraintName != nil || columnName != nil
        return parts.joined(separator: ", ") + (isPart ? " of \(table)" : ", table \(table)")
    }
}
