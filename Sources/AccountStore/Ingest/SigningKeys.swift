package import Basics
package import Postgres

/// All keys that were seen in Apple's key set (`siwa.signing_keys`), each with the URL that it was fetched from.
package enum SigningKeys {
    /// Which stored keys are trusted.
    package struct Trust: Sendable, Equatable {
        /// The configured URL of the key set. Keys from another URL are not trusted.
        package let url: String
        /// How long a key is trusted after the last fetch that contained it, by the database's clock.
        package let maximumAge: Duration

        package init(url: String, maximumAge: Duration) {
            self.url = url
            self.maximumAge = maximumAge
        }
    }

    /// A stored key.
    package struct Kept: Sendable, Equatable {
        /// `kid`; the `kid` inside ``jwk`` must be the same.
        package let keyID: String
        /// A JSON Web Key.
        package let jwk: String

        package init(keyID: String, jwk: String) {
            self.keyID = keyID
            self.jwk = jwk
        }
    }

    /// Stores the keys of a set that was fetched from `url`, and updates when known keys were last seen.
    ///
    /// - Parameters:
    ///   - keys: must not contain a `kid` twice.
    ///   - age: how long ago they were fetched. What another daemon stored of a later fetch stays.
    package static func keep(
        _ keys: [Kept],
        from url: String,
        age: Duration = .zero,
        in session: borrowing Session
    ) throws(PostgresError) {
        _ = try session.execute(
            keep,
            Binds { binds in
                binds.append(url)
                binds.appendTexts(keys.count) { keys[$0].keyID }
                binds.appendTexts(keys.count) { keys[$0].jwk }
                binds.append(age.components.seconds)
            }
        )
    }

    /// A stored key and when it was last seen.
    package struct Seen: Sendable, Equatable {
        package let key: Kept
        /// When a fetched set last contained it, by the database's clock.
        package let lastSeenAt: WallTime
    }

    /// The trusted keys of the set that was fetched last. A daemon that starts while Apple is unreachable uses them. Older
    /// keys verify only what was received while they were current.
    package static func latestSet(_ trust: Trust, in session: borrowing Session) throws(PostgresError) -> [Seen] {
        let seen = try all(trust, in: session)
        let latest = seen.map(\.lastSeenAt).max()
        return seen.filter { $0.lastSeenAt == latest }
    }

    /// All trusted keys.
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
            INSERT INTO siwa.signing_keys AS k (url, kid, jwk, first_seen, last_seen)
            SELECT $1, n.kid, n.jwk::jsonb, now() - $4 * interval '1 second', now() - $4 * interval '1 second'
            FROM unnest($2::text[], $3::text[]) AS n (kid, jwk) ORDER BY n.kid
            ON CONFLICT (url, kid) DO UPDATE SET jwk = excluded.jwk, last_seen = excluded.last_seen
            -- A time in the future is of a clock that was wrong.
            WHERE k.last_seen <= excluded.last_seen OR k.last_seen > now()
            """
    )
}
