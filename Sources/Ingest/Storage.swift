/// Where what comes in is made durable at present.
package enum Storage: Sendable, Equatable {
    /// In PostgreSQL.
    case database
    /// In the spool, until PostgreSQL is back.
    case spool
    /// Nowhere: requests are answered 503. `cause` says why, for people.
    case nowhere(cause: String)
}
