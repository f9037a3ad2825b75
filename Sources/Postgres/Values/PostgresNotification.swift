/// A message that another session sent with NOTIFY.
package struct PostgresNotification: Sendable, Equatable {
    package let channel: String
    package let payload: String
}
