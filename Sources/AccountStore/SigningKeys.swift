package import AppleTokens
package import Postgres

/// Every key that Apple's key set ever held (`siwa.signing_keys`), each under the URL that it was fetched from.
package enum SigningKeys {
    /// Which of the kept keys count.
    package struct Trust: Sendable, Equatable {
        /// Where the key set is that is in force. A key that another URL served says nothing about Apple.
        package let url: String
        /// How long a key counts that no fetch confirms, by the database's clock.
        package let maximumAge: Duration

        /// Trust in the key set of a URL.
        package init(url: String, maximumAge: Duration) {
            self.url = url
            self.maximumAge = maximumAge
        }
    }

    /// One kept key.
    package struct Kept: Sendable, Equatable {
        /// The key's `kid`.
        package let keyID: String
        /// The key as a JSON Web Key.
        package let jwk: String

        /// A key to keep; the `kid` inside the JSON Web Key must be the same.
        package init(keyID: String, jwk: String) {
            self.keyID = keyID
            self.jwk = jwk
        }
    }

    /// Keeps the keys of a set that was fetched from `url` just now. A key that is known is marked as seen.
    ///
    /// - Parameter keys: `kid` and JSON Web Key of each; every `kid` once.
    package static func keep(_ keys: [Kept], from url: String, in session: borrowing Session) throws(PostgresError) {
        _ = try session.execute(
            keep,
            Binds { binds in
                binds.append(url)
                binds.appendTexts(keys.count) { keys[$0].keyID }
                binds.appendTexts(keys.count) { keys[$0].jwk }
            }
        )
    }

    /// A key with the time until which it was seen.
    package struct Seen: Sendable, Equatable {
        /// The key.
        package let key: Kept
        /// When a fetched set held it last, by the database's clock.
        package let lastSeenAt: WallTime
    }

    /// The keys of the set that was fetched last: those that a start without Apple goes on with. Older ones verify only
    /// what was received while they were current.
    package static func latestSet(_ trust: Trust, in session: borrowing Session) throws(PostgresError) -> [Seen] {
        let seen = try all(trust, in: session)
        let latest = seen.map(\.lastSeenAt).max()
        return seen.filter { $0.lastSeenAt == latest }
    }

    /// Every key that counts.
    package static func all(_ trust: Trust, in session: borrowing Session) throws(PostgresError) -> [Seen] {
        let binds = Binds {
            $0.append(trust.url)
            $0.append(trust.maximumAge.components.seconds)
        }
        return try session.execute(all, binds).map { (rows, row) throws(PostgresError) in
            Seen(
                key: Kept(keyID: try rows.string(row, 0), jwk: try rows.string(row, 1)),
                lastSeenAt: try rows.time(row, 2)
            )
        }
    }

    private static let all = Statement(
        once: """
            SELECT kid, jwk::text, last_seen FROM siwa.signing_keys
            WHERE url = $1 AND last_seen > now() - $2 * interval '1 second'
            ORDER BY kid
            """
    )

    private static let keep = Statement(
        once: """
            INSERT INTO siwa.signing_keys AS k (url, kid, jwk)
            SELECT $1, n.kid, n.jwk::jsonb FROM unnest($2::text[], $3::text[]) AS n (kid, jwk) ORDER BY n.kid
            ON CONFLICT (url, kid) DO UPDATE SET jwk = excluded.jwk, last_seen = excluded.last_seen
            """
    )
}
