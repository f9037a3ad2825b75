import AccountStore
import AppleNotifications
import JOSE
import Postgres

extension ReceivedDeadLetter {
    /// What becomes of a notification whose data PostgreSQL refuses.
    init(rejected received: ReceivedNotification, by error: PostgresError) {
        let code = error.sqlState?.rawValue ?? "unknown"
        let constraint = error.constraintName.map { " by the constraint \($0)" } ?? ""
        let token = received.notification.token
        self.init(
            .storeRejected(received.notification, detail: "PostgreSQL refused it\(constraint) (SQLSTATE \(code))."),
            // The body is not carried along for what is expected to be stored; the token is all of it that matters.
            body: token,
            tokenDigest: SHA256.digest(token.span),
            receivedAt: received.receivedAt
        )
    }
}
