import AccountStore
import AppleClient
import AppleTokens
import Ingest
import JOSE
import Postgres

extension KeyRing.Source {
    /// Keys from Apple's endpoint, kept in the database under its URL.
    init(fetcher: KeySetFetcher, trust: SigningKeys.Trust, pool: ConnectionPool) {
        self.init(
            fetch: { try await fetcher.fetch() },
            persisted: {
                let kept = try await pool.withSession { session throws(PostgresError) in
                    try SigningKeys.latestSet(trust, in: session)
                }
                let keys = try kept.map { try JSONWebKey(JSONValue(parsing: Array($0.key.jwk.utf8))) }
                return KeySet(keys, fetchedAt: nil, confirmedAt: kept.first?.lastSeenAt)
            },
            persist: { keys in
                let kept = keys.map { SigningKeys.Kept(keyID: $0.keyID, jwk: $0.json) }
                try await pool.withSession { session throws(PostgresError) in
                    try SigningKeys.keep(kept, from: trust.url, in: session)
                }
            }
        )
    }
}
