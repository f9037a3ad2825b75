import AccountStore
import AppleClient
import Intake
import JOSE
import Postgres

extension KeyRing.Source {
    /// Keys from Apple's endpoint, kept in the database.
    init(fetcher: KeySetFetcher, pool: ConnectionPool) {
        self.init(
            fetch: { try await fetcher.fetch() },
            persisted: {
                let kept = try await pool.withSession { session throws(PostgresError) in
                    try SigningKeys.latestSet(in: session)
                }
                return try kept.map { try JSONWebKey(JSONValue(parsing: Array($0.jwk.utf8))) }
            },
            persist: { keys in
                let kept = keys.map { SigningKeys.Kept(keyID: $0.keyID, jwk: $0.json) }
                try await pool.withSession { session throws(PostgresError) in
                    try SigningKeys.keep(kept, in: session)
                }
            }
        )
    }
}
