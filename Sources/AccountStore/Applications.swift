package import AppleTokens
package import Postgres

/// The SQL functions that applications call, called from here: for the demonstration and for tests.
package enum Applications {
    /// Records a sign-in (`siwa.record_sign_in`).
    ///
    /// - Returns: the account's id.
    /// - Throws: SQLSTATE SW001 for an unknown client id, SW002 for a deleted account, SW006 for a time ahead.
    @discardableResult
    package static func recordSignIn(
        client: ClientID,
        subject: Subject,
        email: String? = nil,
        emailIsPrivate: Bool? = nil,
        signedInAt: WallTime,
        in session: borrowing Session
    ) throws(PostgresError) -> Int64 {
        let rows = try session.execute(
            recordSignIn,
            Binds {
                $0.append(client.rawValue)
                $0.append(subject.rawValue)
                $0.append(email)
                $0.append(emailIsPrivate)
                $0.append(Timestamp(signedInAt))
            }
        )
        return try rows.int64(0, 0)
    }

    /// Opens a session (`siwa.open_session`).
    ///
    /// - Returns: whether it is live.
    /// - Throws: SQLSTATE SW001 for an unknown client id, SW003 if no sign-in is recorded, SW004 if another person has the
    ///   id, SW005 for an expiry that is not after the opening.
    @discardableResult
    package static func openSession(
        client: ClientID,
        subject: Subject,
        session id: String,
        createdAt: WallTime,
        expiresAt: WallTime? = nil,
        in session: borrowing Session
    ) throws(PostgresError) -> Bool {
        let rows = try session.execute(
            openSession,
            Binds {
                $0.append(client.rawValue)
                $0.append(subject.rawValue)
                $0.append(id)
                $0.append(Timestamp(createdAt))
                $0.append(expiresAt.map { Timestamp($0) })
            }
        )
        return try rows.bool(0, 0)
    }

    /// Whether a session is live (`siwa.session_is_live`).
    package static func sessionIsLive(_ id: String, in session: borrowing Session) throws(PostgresError) -> Bool {
        try session.execute(sessionIsLive, Binds { $0.append(id) }).bool(0, 0)
    }

    private static let recordSignIn = Statement("SELECT siwa.record_sign_in($1, $2, $3, $4, $5)")
    private static let openSession = Statement("SELECT siwa.open_session($1, $2, $3, $4, $5)")
    private static let sessionIsLive = Statement("SELECT siwa.session_is_live($1)")
}
