public import AppleNotifications
public import Postgres

/// Every key that Apple's key set ever held (`siwa.signing_keys`).
public enum SigningKeys {
    /// One kept key.
    public struct Kept: Sendable, Equatable {
        /// The key's `kid`.
        public let keyID: String
        /// The key as a JSON Web Key.
        public let jwk: String

        /// A key to keep; the `kid` inside the JSON Web Key must be the same.
        public init(keyID: String, jwk: String) {
            self.keyID = keyID
            self.jwk = jwk
        }
    }

    /// Keeps the keys of a set that was fetched just now. A key that is known is marked as seen.
    ///
    /// - Parameter keys: `kid` and JSON Web Key of each; every `kid` once.
    public static func keep(_ keys: [Kept], in session: borrowing Session) throws(PostgresError) {
        _ = try session.execute(
            keep,
            Binds { binds in
                binds.appendTexts(keys.count) { keys[$0].keyID }
                binds.appendTexts(keys.count) { keys[$0].jwk }
            }
        )
    }

    /// The keys of the set that was fetched last: those that a start without Apple goes on with. Older ones verify only
    /// what was received while they were current.
    public static func latestSet(in session: borrowing Session) throws(PostgresError) -> [Kept] {
        try session.execute(latestSet).map { (rows, row) throws(PostgresError) in
            Kept(keyID: try rows.string(row, 0), jwk: try rows.string(row, 1))
        }
    }

    /// A key with the time until which it was seen.
    public struct Seen: Sendable, Equatable {
        /// The key.
        public let key: Kept
        /// When a fetched set held it last, by the database's clock.
        public let lastSeenAt: WallTime
    }

    /// Every key that was ever seen.
    public static func all(in session: borrowing Session) throws(PostgresError) -> [Seen] {
        try session.execute(all).map { (rows, row) throws(PostgresError) in
            Seen(
                key: Kept(keyID: try rows.string(row, 0), jwk: try rows.string(row, 1)),
                lastSeenAt: try rows.time(row, 2)
            )
        }
    }

    private static let all = Statement(once: "SELECT kid, jwk::text, last_seen FROM siwa.signing_keys ORDER BY kid")

    private static let keep = Statement(
        once: """
            INSERT INTO siwa.signing_keys AS k (kid, jwk)
            SELECT n.kid, n.jwk::jsonb FROM unnest($1::text[], $2::text[]) AS n (kid, jwk) ORDER BY n.kid
            ON CONFLICT (kid) DO UPDATE SET jwk = excluded.jwk, last_seen = excluded.last_seen
            """
    )

    private static let latestSet = Statement(
        once: """
            SELECT kid, jwk::text FROM siwa.signing_keys
            WHERE last_seen = (SELECT max(last_seen) FROM siwa.signing_keys)
            ORDER BY kid
            """
    )
}
